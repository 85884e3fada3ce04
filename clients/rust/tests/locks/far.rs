//! A wire to a far server: each byte arrives a while after it was sent, and any number of them is on its way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The port of a wire to the server on this port. A round trip over it takes twice this time. It lives as long as the
/// test.
pub(crate) fn wire_to(port: u16, one_way: Duration) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let here = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                from.set_nodelay(true).unwrap();
                pass(from.try_clone().unwrap(), to.try_clone().unwrap(), one_way);
            }
        }
    });
    here
}

fn pass(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (sender, arriving) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if sender.send((Instant::now() + late, bytes[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (at, bytes) in arriving {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The other side may have closed it already.
        drop(to.shutdown(Shutdown::Both));
    });
}
