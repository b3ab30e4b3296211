//! A connection through this process, which may be slow and can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

/// Bytes per second, so that memory is missing when the guest is handed over. QEMU alone may send more than its limit, by a full
/// buffer ten times a second.
const STEADY: u64 = 300 << 10;
/// Size of the buffers of a connection that holds little on its way.
const SMALL: usize = 4096;

/// The middle of the connection.
pub(super) struct Splice {
    at_source: TcpStream,
    at_target: TcpStream,
    rate: Arc<AtomicU64>,
}

impl Splice {
    /// Returns the source's and the target's end, and the middle. `small` buffers hold little of what was sent and has not
    /// arrived. [`STEADY`] bytes pass in a second.
    pub(super) fn new(small: bool) -> (OwnedFd, OwnedFd, Self) {
        let (source, at_source) = pair(small);
        let (at_target, target) = pair(small);
        let rate = Arc::new(AtomicU64::new(STEADY));
        for (from, to) in [(&at_source, &at_target), (&at_target, &at_source)] {
            let (from, to, rate) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&rate));
            thread::spawn(move || forward(from, to, &rate));
        }
        (source.into(), target.into(), Self { at_source, at_target, rate })
    }

    /// From now on so many bytes pass in a second.
    pub(super) fn slow_down(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Ends the connection at both ends.
    pub(super) fn cut(self) {
        for end in [&self.at_source, &self.at_target] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Ends the connection at the source. The target does not notice it, for as long as the result lives.
    pub(super) fn cut_at_source(self) -> TcpStream {
        let at_target = self.at_target.try_clone().unwrap();
        self.rate.store(0, Ordering::Relaxed);
        self.at_source.shutdown(Shutdown::Both).unwrap();
        at_target
    }
}

fn pair(small: bool) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if small {
        setsockopt(&listener, sockopt::RcvBuf, &SMALL).unwrap();
    }
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    if small {
        for end in [&one, &other] {
            setsockopt(end, sockopt::SndBuf, &SMALL).unwrap();
        }
        setsockopt(&one, sockopt::RcvBuf, &SMALL).unwrap();
    }
    (one, other)
}

fn forward(mut from: TcpStream, mut to: TcpStream, rate: &AtomicU64) {
    let mut block = [0; 2048];
    while let Ok(count @ 1..) = from.read(&mut block) {
        match rate.load(Ordering::Relaxed) {
            0 => return,
            rate => {
                let bytes = u64::try_from(count).unwrap();
                thread::sleep(Duration::from_micros(1_000_000 * bytes / rate));
            }
        }
        if to.write_all(&block[..count]).is_err() {
            return;
        }
    }
    if rate.load(Ordering::Relaxed) > 0 {
        let _ = to.shutdown(Shutdown::Both);
    }
}
