//! The connection to passt, which joins the guest to the pod network from its own container. The launcher connects,
//! because QEMU may not.
//!
//! ```text
//!  launcher                      container passt
//!    connects  ----------------> waits
//!    sends a request ----------> becomes passt; by now the handler has prepared the pod's network
//!    gets the answer <---------- passt works
//!    hands the connection to QEMU
//! ```
//!
//! The request is an ARP request for an address that no guest uses. passt answers for all addresses except the
//! guest's own.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use barevirt_api::passt::{self, CONTAINER, SOCKET};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::parse_mac;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use crate::awaited;
use crate::guest_end::GuestEnd;
use crate::passt::REFUSAL;

/// An address of the range that is reserved for documentation.
const ASKED_FOR: [u8; 4] = [192, 0, 2, 1];
/// Longest frame that passt sends.
const LONGEST: u32 = 65535 + 14;
/// Longest error message of a container that cannot start passt.
const LONGEST_REFUSAL: u64 = 1024;
/// The kernel's IPv4 routes: a line of titles, and one line for each route.
const ROUTES: &str = "/proc/self/net/route";

/// Connects to passt's container, if the guest has a card with `passtBinding`.
///
/// # Errors
/// The end of the guest if the container does not listen by the deadline.
pub(super) async fn connect(
    vmi: &ValidVmi,
    sockets: &Path,
    deadline: Instant,
    say: &impl Fn(String),
) -> Result<Option<OwnedFd>, GuestEnd> {
    if passt::of(vmi.spec()).is_none() {
        return Ok(None);
    }
    say(format!("waiting for container {CONTAINER}"));
    let socket = sockets.join(SOCKET);
    let connection = awaited::call(&socket, deadline, "it does not listen in time").await;
    connection.map(Some).map_err(|error| failed(&error))
}

/// Starts passt, and waits until it works. `mac` is the card's address.
///
/// # Errors
/// The end of the guest if passt does not answer by the deadline.
pub(super) async fn begin(
    connection: OwnedFd,
    mac: &str,
    deadline: Instant,
    say: &impl Fn(String),
) -> Result<OwnedFd, GuestEnd> {
    say("waiting for passt".to_owned());
    let invalid = || io::Error::new(ErrorKind::InvalidInput, format!("{mac} is not a MAC address"));
    let question = parse_mac(mac).ok_or_else(invalid).map(question).map_err(|error| failed(&error))?;
    // Without IPv4, passt does not answer ARP requests.
    let answers = fs::read_to_string(ROUTES).is_ok_and(|routes| routes.lines().nth(1).is_some());
    ask(connection, &question, answers, deadline).await.map_err(|error| failed(&error))
}

fn failed(error: &io::Error) -> GuestEnd {
    GuestEnd::failed("PasstFailed", format!("container {CONTAINER}: {error}"))
}

/// The ARP request, a broadcast frame from the card's MAC address without an IPv4 address. Its length comes first.
fn question(mac: [u8; 6]) -> Vec<u8> {
    const ARP: [u8; 2] = [0x08, 0x06];
    const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 0x08, 0, 6, 4, 0, 1];
    let mut frame = [0xff; 6].to_vec();
    for part in [&mac[..], &ARP, &ETHERNET_IPV4_REQUEST, &mac, &[0; 4], &[0; 6], &ASKED_FOR] {
        frame.extend(part);
    }
    let length = u32::try_from(frame.len()).unwrap_or_default();
    [&length.to_be_bytes()[..], &frame].concat()
}

/// Sends the request and waits for one whole frame, which may be any frame: the connection has no other user yet.
async fn ask(connection: OwnedFd, question: &[u8], answers: bool, deadline: Instant) -> io::Result<OwnedFd> {
    let stream = UnixStream::from(connection);
    stream.set_nonblocking(true)?;
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    let exchange = async {
        stream.write_all(question).await?;
        if answers {
            let length = stream.read_u32().await?;
            if length == REFUSAL {
                let mut why = String::new();
                (&mut stream).take(LONGEST_REFUSAL).read_to_string(&mut why).await?;
                return Err(io::Error::other(why));
            }
            if length > LONGEST {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("a frame of {length} bytes")));
            }
            let mut frame = vec![0; usize::try_from(length).unwrap_or_default()];
            stream.read_exact(&mut frame).await?;
        }
        Ok(())
    };
    match timeout_at(deadline, exchange).await {
        Ok(Ok(())) => {
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            Ok(stream.into())
        }
        // The connection ends only if passt ends.
        Ok(Err(error)) if is_end(&error) => Err(io::Error::new(error.kind(), "passt ended at once")),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::new(ErrorKind::TimedOut, "passt does not answer in time")),
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// The result of a request if the other side reads it and then runs `other`.
    async fn asked(other: impl FnOnce(UnixStream, [u8; 46]) + Send + 'static) -> io::Result<OwnedFd> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let other = std::thread::spawn(move || {
            let mut question = [0; 46];
            theirs.read_exact(&mut question).unwrap();
            other(theirs, question);
        });
        let asked = ask(ours.into(), &question(MAC), true, Instant::now() + Duration::from_secs(2)).await;
        other.join().unwrap();
        asked
    }

    #[tokio::test]
    async fn passt_works_once_it_has_answered() {
        let answered = asked(|mut passt, question| {
            assert_eq!(question[..4], [0, 0, 0, 42]);
            assert_eq!((&question[4..10], &question[10..16]), (&[0xff; 6][..], &MAC[..]));
            assert_eq!(question[42..], ASKED_FOR);
            let mut answer = vec![0, 0, 0, 42];
            answer.extend([1; 42]);
            passt.write_all(&answer).unwrap();
            passt.write_all(b"next").unwrap();
        });
        // Data after the answer is for the guest.
        let mut next = String::new();
        UnixStream::from(answered.await.unwrap()).read_to_string(&mut next).unwrap();
        assert_eq!(next, "next");
    }

    #[tokio::test]
    async fn a_passt_that_does_not_work_is_named() {
        let says = |bytes: &'static [u8]| asked(move |mut passt, _| passt.write_all(bytes).unwrap());
        let why = |asked: io::Result<OwnedFd>| asked.unwrap_err().to_string();
        assert_eq!(why(says(b"").await), "passt ended at once");
        assert_eq!(why(says(&[0x7f; 64]).await), "a frame of 2139062143 bytes");
        assert_eq!(why(says(b"\xff\xff\xff\xffthere is none").await), "there is none");
        // It waits until the launcher gives up.
        let silent = asked(|mut passt, _| assert_eq!(passt.read(&mut [0]).unwrap_or_default(), 0)).await;
        assert_eq!(why(silent), "passt does not answer in time");
    }
}
