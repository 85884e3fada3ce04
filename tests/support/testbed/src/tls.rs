//! What a server needs to speak TLS.

use crate::Port;
use std::process::Command;
use tempfile::TempDir;

const AUTHORITY: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=ca
echo subjectAltName=IP:127.0.0.1 > names
";

/// A certificate of it, in the place of the former one.
const CERTIFICATE: &str = "
openssl req -newkey rsa:2048 -nodes -keyout next.key -out next.csr -subj /CN=server
openssl x509 -req -in next.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out next.crt
mv next.key server.key
mv next.crt server.crt
";

/// A certificate for this machine, its authority, and a port.
pub struct Certificates {
    dir: TempDir,
    port: Port,
}

impl Certificates {
    /// Makes them; None where openssl is not installed.
    pub fn make() -> Option<Certificates> {
        let certificates = Certificates { dir: tempfile::tempdir().ok()?, port: Port::claim() };
        (certificates.run(AUTHORITY) && certificates.renew()).then_some(certificates)
    }

    /// Makes another certificate; servers have the former one until they load it. False if that fails.
    pub fn renew(&self) -> bool {
        self.run(CERTIFICATE)
    }

    fn run(&self, script: &str) -> bool {
        let made = Command::new("sh").args(["-ec", script]).current_dir(self.dir.path()).output();
        made.is_ok_and(|made| made.status.success())
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The file of the authority.
    pub fn authority(&self) -> String {
        self.file("ca.crt")
    }

    /// Where the server is to listen for TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The options of the server. The port is the last one, since all others are for it.
    pub fn options(&self) -> [(&'static str, String); 5] {
        [
            ("tls-cert-file", self.file("server.crt")),
            ("tls-key-file", self.file("server.key")),
            ("tls-ca-cert-file", self.authority()),
            ("tls-auth-clients", "no".to_owned()),
            ("tls-port", self.port().to_string()),
        ]
    }
}
