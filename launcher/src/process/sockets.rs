//! Connections for a child that can connect to nothing by itself, and for one that listens.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use barevirt_confinement::{Answer, Asked, SocketCalls};
use nix::sys::signal::SigSet;
use nix::sys::socket::{MsgFlags, recv};

/// Stack of the thread that answers.
const STACK: usize = 64 << 10;

/// The connections that are offered to a child. Each of its attempts to connect gets the next one, and is refused when none is
/// left. A child that listens on a [door](Self::open) accepts those that are let in. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Offered(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    /// For its attempts to connect.
    outgoing: VecDeque<OwnedFd>,
    door: Option<Door>,
}

/// What a child listens on: one end of a pair of sockets, which can be read for each connection that waits.
#[derive(Debug)]
struct Door {
    inside: UnixStream,
    outside: UnixStream,
    /// The child's number of its end, once it listens.
    socket: Option<u32>,
    waiting: VecDeque<OwnedFd>,
}

impl Offered {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers these connections, in this order, instead of all that are left of earlier ones.
    pub fn put(&self, connections: impl IntoIterator<Item = OwnedFd>) {
        self.all().outgoing = connections.into_iter().collect();
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().outgoing.is_empty()
    }

    /// The next socket on which the child listens becomes a door: nobody can connect to it, and it accepts what is [let
    /// in](Self::let_in). An earlier door is closed.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn open(&self) -> io::Result<()> {
        let (inside, outside) = UnixStream::pair()?;
        self.all().door = Some(Door { inside, outside, socket: None, waiting: VecDeque::new() });
        Ok(())
    }

    /// Closes the door. A socket on which the child listens from now on is a usual one.
    pub fn close(&self) {
        self.all().door = None;
    }

    /// The child accepts this connection, after those that were let in before.
    ///
    /// # Errors
    /// If there is no door, or the child does not listen on it.
    pub fn let_in(&self, connection: OwnedFd) -> io::Result<()> {
        let mut all = self.all();
        let door =
            all.door.as_mut().filter(|door| door.socket.is_some()).ok_or(io::ErrorKind::NotConnected)?;
        door.waiting.push_back(connection);
        door.outside.write_all(&[0])
    }

    /// The answer to a call of the child.
    pub(crate) fn answer(&self, asked: Asked) -> Answer {
        let mut all = self.all();
        match asked {
            Asked::Connect => all.outgoing.pop_front().map_or(Answer::Refused, Answer::InPlace),
            Asked::Listen(socket) => all.door.as_mut().map_or(Answer::Usual, |door| door.listened_on(socket)),
            Asked::Accept(socket) => all.door.as_mut().map_or(Answer::Usual, |door| door.next(socket)),
        }
    }

    /// Answers the calls of a child, until it has ended.
    pub(super) fn answering(calls: SocketCalls) -> io::Result<Self> {
        let offered = Self::default();
        let own = offered.clone();
        let answer = move || {
            // They are for other threads; one of them would spoil an answer.
            let _ = SigSet::all().thread_block();
            loop {
                match calls.answer(|asked| own.answer(asked)) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        tracing::warn!(%error, "a child gets no connections any more");
                        return;
                    }
                }
            }
        };
        thread::Builder::new().name("sockets".to_owned()).stack_size(STACK).spawn(answer)?;
        Ok(offered)
    }
}

impl Door {
    /// The same call may come again: a signal ended it before it had the answer.
    fn listened_on(&mut self, socket: u32) -> Answer {
        if self.socket.is_some_and(|first| first != socket) {
            return Answer::Usual;
        }
        let Ok(inside) = self.inside.try_clone() else { return Answer::Usual };
        self.socket = Some(socket);
        Answer::InPlace(inside.into())
    }

    /// The child may have closed its end, and listen on another socket of the same number: nothing waits by then.
    fn next(&mut self, socket: u32) -> Answer {
        if self.socket != Some(socket) {
            return Answer::Usual;
        }
        let Some(connection) = self.waiting.pop_front() else { return Answer::Usual };
        let _ = recv(self.inside.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT);
        Answer::Returned(connection)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_door_is_the_next_socket_and_gives_what_was_let_in_in_its_order() {
        let offered = Offered::default();
        assert!(matches!(offered.answer(Asked::Listen(7)), Answer::Usual));
        let (_far, connection) = UnixStream::pair().unwrap();
        assert_eq!(offered.let_in(connection.into()).unwrap_err().kind(), io::ErrorKind::NotConnected);
        offered.open().unwrap();
        let Answer::InPlace(inside) = offered.answer(Asked::Listen(8)) else { panic!("not a door") };
        let mut inside = UnixStream::from(inside);
        inside.set_nonblocking(true).unwrap();
        assert!(matches!(offered.answer(Asked::Listen(8)), Answer::InPlace(_)), "the same call again");
        assert!(matches!(offered.answer(Asked::Listen(9)), Answer::Usual), "there is one door");
        let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [first, second] = pairs.map(|(far, near)| {
            offered.let_in(near.into()).unwrap();
            far
        });
        assert!(matches!(offered.answer(Asked::Accept(9)), Answer::Usual));
        for mut far in [first, second] {
            let Answer::Returned(near) = offered.answer(Asked::Accept(8)) else { panic!("nothing") };
            UnixStream::from(near).write_all(b"!").unwrap();
            far.read_exact(&mut [0]).unwrap();
        }
        // Nothing waits any more, and the child's end says so.
        assert!(matches!(offered.answer(Asked::Accept(8)), Answer::Usual));
        assert_eq!(inside.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        offered.close();
        assert!(matches!(offered.answer(Asked::Listen(8)), Answer::Usual));
    }
}
