//! etcd: its lock service, as in v3lock.proto. Each client has a connection and a lease of its own.

use super::{Requests, Target};
use crate::Failure;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

// The fields that are used here; a reader of protobuf skips all others.

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrant {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGranted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Unlock {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Unlocked {}

pub(crate) struct Client {
    grpc: Grpc<Channel>,
    name: Vec<u8>,
    lease: i64,
    /// The key of the hold.
    key: Vec<u8>,
    requests: Requests,
}

impl Client {
    pub(super) async fn connect(target: Target, requests: Requests) -> Result<Client, Failure> {
        let place = Endpoint::from_shared(format!("http://127.0.0.1:{}", target.port))?;
        let grpc = Grpc::new(place.tcp_nodelay(true).connect().await?);
        let name = format!("compare/{}", target.lock).into_bytes();
        let mut client = Client { grpc, name, lease: 0, key: Vec::new(), requests };
        let grant = LeaseGrant { seconds: i64::try_from(target.lease.as_secs())? };
        let granted: LeaseGranted = client.call("/etcdserverpb.Lease/LeaseGrant", grant).await?;
        client.lease = granted.id;
        Ok(client)
    }

    pub(super) async fn acquire(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let request = Lock { name: self.name.clone(), lease: self.lease };
        let locked: Locked = self.call("/v3lockpb.Lock/Lock", request).await?;
        self.key = locked.key;
        Ok(())
    }

    pub(super) async fn release(&mut self) -> Result<(), Failure> {
        self.requests.add();
        let request = Unlock { key: std::mem::take(&mut self.key) };
        let _: Unlocked = self.call("/v3lockpb.Lock/Unlock", request).await?;
        Ok(())
    }

    async fn call<Q, A>(&mut self, method: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        self.grpc.ready().await?;
        let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::<Q, A>::default());
        Ok(self.grpc.unary(tonic::Request::new(request), path, codec).await?.into_inner())
    }
}
