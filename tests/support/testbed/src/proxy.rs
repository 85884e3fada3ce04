//! A wire between clients and a server that can be cut, frozen and slowed.

use crate::Port;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

/// What the wire does.
#[derive(Debug)]
struct Wire {
    to: AtomicU16,
    /// Bytes are held back, in both directions, and new connections are taken but go nowhere: a partition that stays
    /// unnoticed.
    frozen: AtomicBool,
    /// The same for connections from these addresses alone.
    frozen_from: RwLock<Vec<IpAddr>>,
    /// After so many bytes more, on whichever connection, that connection is cut. Negative: never.
    cut_after: AtomicI64,
    /// The proxy no longer listens.
    over: AtomicBool,
    cuts: AtomicI64,
    streams: Mutex<Vec<TcpStream>>,
}

/// Listens on a port of its own and passes all on to a server.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    wire: Arc<Wire>,
}

impl Proxy {
    /// To the server on this port.
    pub fn to(port: u16) -> Proxy {
        let here = Port::claim();
        let listener = TcpListener::bind(("127.0.0.1", here.number())).expect("nobody else has it");
        let wire = Arc::new(Wire {
            to: AtomicU16::new(port),
            frozen: AtomicBool::new(false),
            frozen_from: RwLock::default(),
            cut_after: AtomicI64::new(-1),
            over: AtomicBool::new(false),
            cuts: AtomicI64::new(0),
            streams: Mutex::default(),
        });
        let passing = Arc::clone(&wire);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if passing.over.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(stream) = stream {
                    passing.open(stream);
                }
            }
        });
        Proxy { port: here, wire }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Holds all bytes back from now on, or lets them pass again.
    pub fn freeze(&self, frozen: bool) {
        self.wire.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Holds the bytes of connections from these addresses back, and lets all others pass.
    pub fn freeze_from(&self, sources: &[IpAddr]) {
        *self.wire.frozen_from.write().expect("nobody panics with it") = sources.to_vec();
    }

    /// Cuts the connection on which this many bytes more have passed: in the middle of a request or reply, maybe.
    pub fn cut_after(&self, bytes: u32) {
        self.wire.cut_after.store(i64::from(bytes), Ordering::Relaxed);
    }

    /// Cuts all connections that there are.
    pub fn cut_all(&self) {
        for stream in self.wire.streams.lock().expect("nobody panics with it").drain(..) {
            // The other side may have closed it already.
            let _: std::io::Result<()> = stream.shutdown(Shutdown::Both);
        }
    }

    /// Passes on to the server on another port from now on, as an address that follows the primary. Cuts all
    /// connections.
    pub fn lead_to(&self, port: u16) {
        self.wire.to.store(port, Ordering::Relaxed);
        self.cut_all();
    }

    /// The addresses from which the server sees the connections that were made since all were cut.
    pub fn addresses(&self) -> Vec<String> {
        let streams = self.wire.streams.lock().expect("nobody panics with it");
        // First that of the client, then that to the server.
        let to_server = streams.iter().skip(1).step_by(2);
        to_server.filter_map(|stream| Some(stream.local_addr().ok()?.to_string())).collect()
    }

    /// How many connections were cut in the middle.
    pub fn cuts(&self) -> u64 {
        self.wire.cuts.load(Ordering::Relaxed).unsigned_abs()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.wire.over.store(true, Ordering::Relaxed);
        self.cut_all();
        // Wakes the thread that listens.
        let _: std::io::Result<TcpStream> = TcpStream::connect(("127.0.0.1", self.port.number()));
    }
}

impl Wire {
    fn open(self: &Arc<Wire>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.to.load(Ordering::Relaxed))) else {
            return;
        };
        let source = client.peer_addr().map_or(IpAddr::from([0; 4]), |address| address.ip());
        let both = [(&client, &server), (&server, &client)].map(|(from, to)| {
            let _: std::io::Result<()> = from.set_nodelay(true);
            (from.try_clone().expect("enough files"), to.try_clone().expect("enough files"))
        });
        self.streams.lock().expect("nobody panics with it").extend([client, server]);
        for (from, to) in both {
            let wire = Arc::clone(self);
            thread::spawn(move || {
                wire.pass(&from, &to, source);
                // Whichever side ended, the other is closed as well; unless nothing passes at all.
                wire.await_thaw(source);
                let _: std::io::Result<()> = from.shutdown(Shutdown::Both);
                let _: std::io::Result<()> = to.shutdown(Shutdown::Both);
            });
        }
    }

    /// Waits while connections from this address are frozen; false if the proxy no longer listens.
    fn await_thaw(&self, source: IpAddr) -> bool {
        let frozen_from = || self.frozen_from.read().expect("nobody panics with it").contains(&source);
        while self.frozen.load(Ordering::Relaxed) || frozen_from() {
            if self.over.load(Ordering::Relaxed) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Passes bytes on until one side ends, or the wire is cut.
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream, source: IpAddr) {
        let mut bytes = [0; 16 * 1024];
        loop {
            let count = match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            if !self.await_thaw(source) {
                return;
            }
            let left = self.cut_after.load(Ordering::Relaxed);
            let passed = if left < 0 { count } else { count.min(usize::try_from(left).expect("not negative")) };
            if to.write_all(&bytes[..passed]).is_err() {
                return;
            }
            if left >= 0 {
                let after = left - passed as i64;
                let cut = passed < count || after == 0;
                self.cut_after.store(if cut { -1 } else { after }, Ordering::Relaxed);
                if cut {
                    self.cuts.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}
