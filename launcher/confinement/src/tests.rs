use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use super::*;
use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, accept4, send, socket};
use nix::unistd::Pid;

/// The result of `work` in a thread that has entered the domain; all other threads are unaffected.
fn within<T: Send + 'static>(plan: Plan, work: impl FnOnce() -> T + Send + 'static) -> T {
    let entered = move || {
        Domain::new("test", plan).unwrap().enter().unwrap();
        work()
    };
    std::thread::spawn(entered).join().unwrap()
}

fn files(reads_all: bool, rules: Vec<Rule>) -> Plan {
    Plan { files: Some(Files { reads_all, tcp: false, rules }), calls: Calls::Usual }
}

/// Two directories with one file each.
fn two() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directories = ["ours", "theirs"].map(|name| {
        let directory = root.path().join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), "text").unwrap();
        directory
    });
    let [ours, theirs] = directories;
    (root, ours, theirs)
}

#[test]
fn only_what_has_a_rule_is_opened() {
    let (_root, ours, theirs) = two();
    // An open file in a place without a rule: a descriptor can have a rule like a path.
    let kernel = theirs.join("kernel");
    fs::write(&kernel, "text").unwrap();
    let given = File::open(&kernel).unwrap();
    let rules = vec![Rule::path(May::Read, &ours), Rule::open(May::Read, given.into())];
    let kind = |result: io::Result<()>| result.err().map(|error| error.kind());
    within(files(false, rules), move || {
        assert_eq!(fs::read_to_string(ours.join("file")).unwrap(), "text");
        assert_eq!(fs::read_to_string(kernel).unwrap(), "text");
        let denied = Some(ErrorKind::PermissionDenied);
        assert_eq!(kind(fs::read(theirs.join("file")).map(drop)), denied);
        assert_eq!(kind(fs::read_dir(&theirs).map(drop)), denied);
        assert_eq!(kind(fs::write(ours.join("file"), "other")), denied);
        assert_eq!(kind(fs::write(ours.join("new"), "other")), denied);
    });
}

#[test]
fn where_all_is_read_writing_and_executing_still_need_a_rule() {
    let (_root, ours, theirs) = two();
    let program = ours.join("true");
    fs::copy("/bin/true", &program).unwrap();
    let rules =
        vec![Rule::path(May::Write, &ours), Rule::path(May::Run, "/usr"), Rule::path(May::Run, "/lib64")];
    within(files(true, rules), move || {
        assert_eq!(fs::read_to_string(theirs.join("file")).unwrap(), "text");
        fs::write(ours.join("new"), "other").unwrap();
        fs::rename(ours.join("new"), ours.join("newer")).unwrap();
        let error = fs::write(theirs.join("file"), "other").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(Command::new("/bin/true").status().unwrap().success());
        // Written files can never be executed.
        let error = Command::new(program).status().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn no_process_outside_is_signalled_or_looked_into() {
    let mut outside = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = outside.id();
    let rules = vec![Rule::path(May::Read, "/proc")];
    // Root's privilege still opens some files of /proc, but not this one.
    let (signalled, looked) = within(files(false, rules), move || {
        (kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM), fs::read_link(format!("/proc/{pid}/cwd")))
    });
    outside.kill().unwrap();
    outside.wait().unwrap();
    assert_eq!(signalled, Err(Errno::EPERM));
    assert_eq!(looked.map_err(|error| error.kind()), Err(ErrorKind::PermissionDenied));
}

#[test]
fn unneeded_system_calls_are_refused() {
    let plan = Plan { files: None, calls: Calls::Usual };
    within(plan, || {
        assert_eq!(nix::sched::unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        assert_eq!(nix::unistd::chroot("/"), Err(Errno::EPERM));
        // Threads and programs still start.
        std::thread::spawn(|| {}).join().unwrap();
        assert!(Command::new("/bin/true").status().unwrap().success());
    });
}

#[test]
fn a_connected_process_cannot_open_other_connections() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let plan = Plan { files: None, calls: Calls::Connected };
    within(plan, move || {
        let error = UnixStream::connect(&socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        drop(listener);
        // The process may listen, and accept connections.
        UnixListener::bind(root.path().join("own")).unwrap();
        UnixStream::pair().unwrap();
    });
}

#[test]
fn only_unix_sockets_are_made_and_qemu_hears_of_devices() {
    for calls in [Calls::Connected, Calls::Answered] {
        within(Plan { files: None, calls }, move || {
            for family in
                [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Packet, AddressFamily::Netlink]
            {
                for kind in [SockType::Stream, SockType::Datagram, SockType::Raw] {
                    assert_eq!(socket(family, kind, SockFlag::empty(), None).map(drop), Err(Errno::EPERM));
                }
            }
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.write_all(b"hello").unwrap();
            theirs.read_exact(&mut [0; 5]).unwrap();
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
            let netlink = |protocol| {
                socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), protocol).map(drop)
            };
            assert_eq!(netlink(SockProtocol::NetlinkRoute), Err(Errno::EPERM));
            let events = netlink(SockProtocol::NetlinkKObjectUEvent);
            assert_eq!(events.is_ok(), calls == Calls::Answered);
        });
    }
}

/// A thread that works with such calls, and the calls.
fn answered<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (std::thread::JoinHandle<T>, SocketCalls) {
    let mut domain = Domain::new("test", Plan { files: None, calls: Calls::Answered }).unwrap();
    let expected = domain.expected().expect("this kernel lets nobody answer system calls");
    let (entered, has_entered) = std::sync::mpsc::channel();
    let process = std::thread::spawn(move || {
        domain.enter().unwrap();
        entered.send(()).unwrap();
        work()
    });
    has_entered.recv().unwrap();
    (process, expected.arrived().unwrap())
}

#[test]
fn a_process_gets_the_connections_that_its_parent_offers_and_no_others() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (process, calls) = answered(move || {
        let mut connected = UnixStream::connect(&socket).unwrap();
        connected.write_all(b"hello").unwrap();
        let refused = UnixStream::connect(&socket).map(drop);
        refused.map_err(|error| error.kind())
    });
    let mut offered = Some(theirs.into());
    // Until the thread has ended.
    while calls.answer(|_| offered.take().map_or(Answer::Refused, Answer::InPlace)).unwrap() {}
    assert_eq!(process.join().unwrap(), Err(ErrorKind::PermissionDenied));
    let mut word = [0; 5];
    ours.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
    assert_eq!(listener.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_process_accepts_what_its_parent_returns_and_listens_where_it_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let (usual, replaced) = (root.path().join("usual"), root.path().join("replaced"));
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (instead, place) = UnixStream::pair().unwrap();
    let connect_to = usual.clone();
    let (process, calls) = answered(move || {
        let usual = UnixListener::bind(usual).unwrap();
        let replaced = UnixListener::bind(replaced).unwrap();
        // The socket is one end of a pair now, which has data.
        let mut byte = [0];
        nix::unistd::read(&replaced, &mut byte).unwrap();
        let connection = accept4(replaced.as_raw_fd(), SockFlag::empty()).unwrap();
        assert_eq!(send(connection, b"hello", MsgFlags::empty()), Ok(5));
        usual.accept().unwrap().0.read_exact(&mut byte).unwrap();
        byte
    });
    let (mut listens, mut place, mut theirs) = (Vec::new(), Some(place.into()), Some(theirs.into()));
    (&instead).write_all(b"?").unwrap();
    let mut client = None;
    let mut answer = |asked| match asked {
        Asked::Connect => Answer::Refused,
        Asked::Listen(socket) => {
            listens.push(socket);
            if listens.len() == 2 { Answer::InPlace(place.take().unwrap()) } else { Answer::Usual }
        }
        Asked::Accept(socket) if Some(&socket) == listens.last() => Answer::Returned(theirs.take().unwrap()),
        Asked::Accept(_) => {
            let mut connected = UnixStream::connect(&connect_to).unwrap();
            connected.write_all(b"!").unwrap();
            client = Some(connected);
            Answer::Usual
        }
    };
    while calls.answer(&mut answer).unwrap() {}
    assert_eq!(process.join().unwrap(), *b"!");
    let mut word = [0; 5];
    ours.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
}

#[test]
fn a_process_whose_calls_nobody_answers_connects_to_nothing() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    within(Plan { files: None, calls: Calls::Answered }, move || UnixStream::connect(&socket).unwrap_err());
}

#[test]
fn a_sandbox_that_was_not_made_is_said_to_be_there() {
    let before = fs::read_link("/proc/thread-self/ns/user").unwrap();
    let plan = Plan { files: None, calls: Calls::AsIfSandboxed };
    within(plan, move || {
        let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        assert_eq!(nix::sched::unshare(flags), Ok(()));
        assert_eq!(nix::mount::umount2("/nowhere", nix::mount::MntFlags::MNT_DETACH), Ok(()));
        assert_eq!(nix::unistd::pivot_root("/nowhere", "/nowhere"), Ok(()));
        let none = None::<&str>;
        let tmpfs = nix::mount::mount(none, "/nowhere", Some("tmpfs"), nix::mount::MsFlags::empty(), none);
        assert_eq!(tmpfs, Ok(()));
        // The calls had no effect, and calls that do not belong to such a sandbox are refused.
        assert_eq!(fs::read_link("/proc/thread-self/ns/user").unwrap(), before);
        assert!(File::open("/dev/null").is_ok());
        assert_eq!(nix::unistd::chroot("/"), Err(Errno::EPERM));
        assert_eq!(
            nix::sched::setns(File::open("/proc/self/ns/net").unwrap(), CloneFlags::CLONE_NEWNET),
            Err(Errno::EPERM)
        );
    });
}

#[test]
fn ports_are_bound_where_that_is_said() {
    let bind = |tcp: bool| {
        let files = Files { reads_all: true, tcp, rules: Vec::new() };
        let plan = Plan { files: Some(files), calls: Calls::AsIfSandboxed };
        within(plan, || std::net::TcpListener::bind("127.0.0.1:0").map(drop).map_err(|error| error.kind()))
    };
    assert_eq!(bind(true), Ok(()));
    // Landlock restricts ports from its fourth version on.
    if bind(false).is_ok() {
        eprintln!("skipped: this kernel does not restrict ports");
    }
}

#[test]
fn a_process_that_hands_over_cannot_execute_programs() {
    let plan = Plan { files: None, calls: Calls::HandOver };
    within(plan, || {
        assert!(File::open("/dev/null").is_ok());
        assert_eq!(Command::new("/bin/true").status().unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(nix::unistd::unlink("/nowhere"), Err(Errno::EPERM));
    });
}

#[test]
fn a_hidden_process_has_no_memory_to_show() {
    hide_memory().unwrap();
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
    nix::sys::prctl::set_dumpable(true).unwrap();
}
