//! The authority, and the certificate that all servers have. Both are made anew for each run.

use redis::{Client, Connection, RedisError, TlsCertificates};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// An authority that signs the names of this machine.
const AUTHORITY: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=authority
echo subjectAltName=IP:127.0.0.1 > names
";

/// A certificate of it, in the place of the former one.
const CERTIFICATE: &str = "
openssl req -newkey rsa:2048 -nodes -keyout next.key -out next.csr -subj /CN=server
openssl x509 -req -in next.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out next.crt
mv next.key server.key
mv next.crt server.crt
";

/// Where they lie.
pub struct Tls {
    dir: PathBuf,
    root: Vec<u8>,
}

impl Tls {
    /// Makes them.
    pub fn make(parent: &Path) -> Tls {
        let dir = parent.join("certificates");
        fs::create_dir(&dir).expect("a directory of our own");
        let mut tls = Tls { dir, root: Vec::new() };
        tls.run(AUTHORITY);
        tls.renew();
        tls.root = fs::read(tls.authority()).expect("just made");
        // Without a choice rustls panics.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        tls
    }

    /// Another certificate takes the place of that which servers have loaded.
    pub fn renew(&self) {
        self.run(CERTIFICATE);
    }

    fn run(&self, script: &str) {
        let made = Command::new("sh").args(["-ec", script]).current_dir(&self.dir).output().expect("a shell");
        assert!(made.status.success(), "openssl: {}", String::from_utf8_lossy(&made.stderr));
    }

    /// The authority's own certificate.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The servers'.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("server.crt")
    }

    /// Its key.
    pub fn key(&self) -> PathBuf {
        self.dir.join("server.key")
    }

    /// A connection to this port, as the default user.
    pub fn connect(&self, port: u16, password: Option<&str>, limit: Duration) -> Result<Connection, RedisError> {
        let user = password.map_or(String::new(), |password| format!(":{password}@"));
        let trusted = TlsCertificates { client_tls: None, root_cert: Some(self.root.clone()) };
        let client = Client::build_with_tls(format!("rediss://{user}127.0.0.1:{port}"), trusted)?;
        let conn = client.get_connection_with_timeout(limit)?;
        conn.set_read_timeout(Some(limit))?;
        conn.set_write_timeout(Some(limit))?;
        Ok(conn)
    }
}
