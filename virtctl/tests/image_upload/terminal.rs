//! A program on a terminal, and what a user sees of its waits there and elsewhere.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::pty::openpty;

use crate::cluster::{Cluster, Script};
use crate::{command, image, run};

/// What empties the line of a wait.
const CLEARED: &str = "\r\x1b[2K";

/// Everything that the program writes to its terminal.
fn on_terminal(command: &mut Command) -> String {
    let pty = openpty(None, None).unwrap();
    command.stdout(Stdio::from(pty.slave.try_clone().unwrap())).stderr(Stdio::from(pty.slave));
    let mut child = command.spawn().unwrap();
    // The terminal ends once no process has its other end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut screen = Vec::new();
    let mut master = File::from(pty.master);
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = master.read(&mut chunk) {
        screen.extend_from_slice(&chunk[..count]);
    }
    child.wait().unwrap();
    String::from_utf8(screen).unwrap()
}

#[test]
fn an_upload_shows_its_progress_on_a_terminal_only() {
    let (_file, flag) = image(&[7; 300_000]);
    let arguments = ["pvc", "disk", "--size=1Gi", &flag, "--insecure"];
    let cluster = Cluster::start(Script::default());
    let ended = run(&mut command(&cluster, &arguments));
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert!(!ended.out.replace('\n', "").contains(char::is_control), "{ended:?}");

    let cluster = Cluster::start(Script::default());
    let screen = on_terminal(&mut command(&cluster, &arguments));
    for shown in [
        "   0s  waiting until the upload can begin",
        "] 100% ",
        "\r\nUploading data completed successfully",
        "   0s  waiting until the image is processed",
        &format!("{CLEARED}Processing completed successfully\r\n"),
    ] {
        assert!(screen.contains(shown), "no {shown:?} in {screen:?}");
    }
    assert!(screen.ends_with("completed successfully\r\n"), "{screen:?}");
}

/// The address of an API server that refuses everything, after two and a half seconds.
fn slow() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = [0; 4096];
            let _request = connection.read(&mut request);
            std::thread::sleep(Duration::from_millis(2500));
            let body = r#"{"kind": "Status", "status": "Failure", "message": "no", "code": 403}"#;
            let answer = format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _answer = connection.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn a_progress_line_is_shown_during_a_slow_answer_and_then_cleared() {
    let server = slow();
    let stop = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_virtctl"));
        command.args(["--server", &server, "-n", "shop", "stop", "web"]).env("KUBECONFIG", "/dev/null");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let failure = "error stopping VirtualMachine web: no";
    let ended = run(&mut stop());
    assert_eq!((ended.code, ended.err), (Some(1), format!("{failure}\n")));
    let screen = on_terminal(&mut stop());
    assert!(screen.contains("s  waiting for the cluster's answer"), "{screen:?}");
    assert!(screen.ends_with(&format!("{CLEARED}{failure}\r\n")), "{screen:?}");
}
