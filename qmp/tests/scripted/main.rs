//! A scripted peer on the other end of a socketpair: one test for each way in which a monitor can be slow,
//! silent, wrong or gone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod newer;
mod peer;

use std::time::{Duration, Instant};

use barevirt_qmp::qapi::qmp::SHUTDOWN;
use barevirt_qmp::{Agent, Deadline, Error, EventGap, Options, Qmp, qapi};
use peer::{Peer, agent_answer, session, shortly, soon};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_silent_monitor_ends_the_wait_only() {
    let (ours, _peer) = Peer::pair();
    let begun = Instant::now();
    let error = Qmp::open(ours, Options::default(), shortly()).await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2));

    let (qmp, _, mut peer) = session().await;
    let error = qmp.execute(qapi::qmp::query_status {}, shortly()).await.unwrap_err();
    assert_eq!(error.to_string(), "no answer to query-status in time");
    // The stream can still be used.
    let (answer, ()) = tokio::join!(qmp.execute_raw("query-name", Value::Null, soon()), async {
        peer.hear().await;
        let heard = peer.hear().await;
        peer.answer(&heard, json!({"name": "x"})).await;
    });
    assert_eq!(answer.unwrap(), json!({"name": "x"}));
}

#[tokio::test]
async fn a_peer_that_reads_nothing_fills_no_memory_and_callers_time_out() {
    let (qmp, _, _peer) = session().await;
    let big = "x".repeat(1 << 20);
    let asks: Vec<_> = (0..100)
        .map(|_| {
            let (qmp, big) = (qmp.clone(), big.clone());
            tokio::spawn(async move { qmp.execute_raw("echo", json!({"x": big}), shortly()).await })
        })
        .collect();
    for ask in asks {
        assert!(matches!(ask.await.unwrap(), Err(Error::Deadline { .. })));
    }
}

#[tokio::test]
async fn answers_find_their_callers_in_any_order() {
    let (qmp, _, mut peer) = session().await;
    let ask = |n: u64| {
        let qmp = qmp.clone();
        async move { qmp.execute_raw("echo", json!({"n": n}), soon()).await.unwrap() }
    };
    let (a, b, c, ()) = tokio::join!(ask(1), ask(2), ask(3), async {
        let mut heard = Vec::new();
        for _ in 0..3 {
            heard.push(peer.hear().await);
        }
        for one in heard.iter().rev() {
            peer.answer(one, one["arguments"]["n"].clone()).await;
        }
    });
    assert_eq!((a, b, c), (json!(1), json!(2), json!(3)));
}

#[tokio::test]
async fn a_late_answer_is_dropped_by_its_id() {
    let (qmp, _, mut peer) = session().await;
    assert!(qmp.execute_raw("slow", Value::Null, shortly()).await.is_err());
    let slow = peer.hear().await;
    let (answer, ()) = tokio::join!(qmp.execute_raw("quick", Value::Null, soon()), async {
        let quick = peer.hear().await;
        peer.answer(&slow, json!("late")).await;
        peer.answer(&slow, json!("twice")).await;
        peer.answer(&quick, json!("mine")).await;
    });
    assert_eq!(answer.unwrap(), json!("mine"));
}

#[tokio::test]
async fn a_dropped_caller_leaves_no_half_line() {
    let (qmp, _, mut peer) = session().await;
    // More than the socket's buffer holds, so that the line is half written when the caller gives up.
    let big = "x".repeat(8 << 20);
    assert!(qmp.execute_raw("big", json!({"x": big}), shortly()).await.is_err());
    let next = tokio::spawn({
        let qmp = qmp.clone();
        async move { qmp.execute_raw("next", Value::Null, soon()).await }
    });
    let heard = peer.hear().await;
    assert_eq!(
        (&heard["execute"], heard["arguments"]["x"].as_str().unwrap().len()),
        (&json!("big"), 8 << 20)
    );
    let heard = peer.hear().await;
    assert_eq!(heard["execute"], "next");
    peer.answer(&heard, json!({})).await;
    next.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_abandoned_command_is_not_sent() {
    let (qmp, _, mut peer) = session().await;
    // The first line blocks the writer; the caller gives up the second one while it is still in the queue.
    let big = "x".repeat(8 << 20);
    let first = tokio::spawn({
        let qmp = qmp.clone();
        async move { qmp.execute_raw("big", json!({"x": big}), soon()).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(qmp.execute_raw("forgotten", Value::Null, shortly()).await.is_err());
    let heard = peer.hear().await;
    peer.answer(&heard, json!({})).await;
    first.await.unwrap().unwrap();
    let (answer, heard) = tokio::join!(qmp.execute_raw("next", Value::Null, soon()), async {
        let heard = peer.hear().await;
        peer.answer(&heard, json!({})).await;
        heard
    });
    answer.unwrap();
    assert_eq!(heard["execute"], "next");
}

#[tokio::test]
async fn garbage_and_strange_messages_are_passed_over() {
    let (qmp, mut events, mut peer) = session().await;
    let (answer, ()) = tokio::join!(qmp.execute_raw("x", Value::Null, soon()), async {
        let heard = peer.hear().await;
        peer.stream.write_all(b"\x00\xff\xfe garbage\r\n[1,2]\r\n\"text\"\r\n").await.unwrap();
        peer.say(r#"{"what": "is this"}"#).await;
        peer.say(r#"{"error": {"class": "GenericError", "desc": "JSON parse error"}}"#).await;
        peer.say(r#"{"event": "NEVER_HEARD_OF", "data": {"x": 1}, "timestamp": {"seconds": 1, "microseconds": 1}}"#).await;
        peer.answer(&heard, json!("mine")).await;
    });
    assert_eq!(answer.unwrap(), json!("mine"));
    let event = events.next().await.unwrap().unwrap();
    assert_eq!((event.name(), event.data("x")), ("NEVER_HEARD_OF", &json!(1)));
    assert!(event.read::<SHUTDOWN>().is_none());
}

#[tokio::test]
async fn a_10_mb_line_is_an_answer_and_beyond_the_limit_a_loss_of_that_answer_only() {
    let (qmp, _, mut peer) = session().await;
    let big = "x".repeat(10 << 20);
    let (answer, ()) = tokio::join!(qmp.execute_raw("big", Value::Null, soon()), async {
        let heard = peer.hear().await;
        peer.answer(&heard, json!(big)).await;
    });
    assert_eq!(answer.unwrap().as_str().unwrap().len(), 10 << 20);

    let (ours, mut peer) = Peer::pair();
    let options = Options { max_line: 1 << 20, ..Options::default() };
    let (opened, ()) = tokio::join!(Qmp::open(ours, options, soon()), peer.open());
    let (qmp, _events) = opened.unwrap();
    let (lost, next, ()) = tokio::join!(
        qmp.execute_raw("big", Value::Null, Deadline::after(Duration::from_millis(500))),
        qmp.execute_raw("small", Value::Null, soon()),
        async {
            let heard = peer.hear().await;
            peer.answer(&heard, json!(big)).await;
            let heard = peer.hear().await;
            peer.answer(&heard, json!("fine")).await;
        }
    );
    assert!(matches!(lost, Err(Error::Deadline { .. })));
    assert_eq!(next.unwrap(), json!("fine"));
}

#[tokio::test]
async fn an_event_before_the_greeting_is_kept() {
    let (ours, mut peer) = Peer::pair();
    let (opened, ()) = tokio::join!(Qmp::open(ours, Options::default(), soon()), async {
        peer.say(r#"{"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}"#).await;
        peer.open().await;
    });
    let (qmp, mut events) = opened.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().name(), "RESUME");
    assert_eq!(qmp.greeting().version(), "10.0.2");
    assert!(qmp.has_oob());
}

#[tokio::test]
async fn the_end_of_the_stream_within_a_line_ends_every_wait() {
    let (qmp, mut events, mut peer) = session().await;
    let ask = |name: &'static str| {
        let qmp = qmp.clone();
        async move { qmp.execute_raw(name, Value::Null, soon()).await.unwrap_err() }
    };
    let begun = Instant::now();
    let (a, b, ()) = tokio::join!(ask("a"), ask("b"), async {
        peer.hear().await;
        peer.hear().await;
        peer.say(r#"{"event": "SHUTDOWN", "data": {"guest": false, "reason": "host-signal"}, "timestamp": {"seconds": 1, "microseconds": 2}}"#).await;
        peer.stream.write_all(b"{\"return\": {").await.unwrap();
        drop(peer);
    });
    for error in [a, b] {
        assert!(error.is_closed(), "{error}");
        assert!(error.to_string().contains("within a line"), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(events.next().await.unwrap().unwrap().name(), "SHUTDOWN");
    assert!(events.next().await.is_none());
    assert!(qmp.events().next().await.is_none());
    qmp.ended().await;
    assert!(qmp.execute_raw("c", Value::Null, soon()).await.unwrap_err().is_closed());
}

#[tokio::test]
async fn an_end_before_the_greeting_is_an_error() {
    let (ours, peer) = Peer::pair();
    drop(peer);
    assert!(Qmp::open(ours, Options::default(), soon()).await.unwrap_err().is_closed());
}

#[tokio::test]
async fn a_slow_listener_delays_no_one_and_learns_of_missed_events() {
    let (ours, mut peer) = Peer::pair();
    let options = Options { event_backlog: 16, ..Options::default() };
    let (opened, ()) = tokio::join!(Qmp::open(ours, options, soon()), peer.open());
    let (qmp, mut events) = opened.unwrap();
    let (answer, ()) = tokio::join!(qmp.execute_raw("x", Value::Null, soon()), async {
        for n in 0..100 {
            peer.say(&json!({"event": "E", "data": {"n": n}}).to_string()).await;
        }
        let heard = peer.hear().await;
        peer.answer(&heard, json!({})).await;
    });
    answer.unwrap();
    assert_eq!(events.next().await, Some(Err(EventGap(84))));
    assert_eq!(events.next().await.unwrap().unwrap().data("n"), &json!(84));
}

#[tokio::test]
async fn refusals_have_class_and_text_and_wrong_shapes_are_answers() {
    let (qmp, _, mut peer) = session().await;
    let (refused, odd, ()) = tokio::join!(
        qmp.execute_raw("no", Value::Null, soon()),
        qmp.execute(qapi::qmp::query_status {}, soon()),
        async {
            let heard = peer.hear().await;
            let refusal = json!({"error": {"class": "FutureError", "desc": "not today"}, "id": heard["id"]});
            peer.say(&refusal.to_string()).await;
            let heard = peer.hear().await;
            peer.answer(&heard, json!({"status": "state-of-the-future", "running": true})).await;
        }
    );
    assert!(matches!(refused, Err(Error::Refused { class, .. }) if class == "FutureError"));
    assert!(matches!(odd, Err(Error::Answer { .. })));
}

#[tokio::test]
async fn out_of_band_needs_the_offer() {
    let (qmp, _, mut peer) = session().await;
    let (answer, heard) = tokio::join!(qmp.execute_oob(qapi::qmp::query_yank {}, soon()), async {
        let heard = peer.hear().await;
        peer.answer(&heard, json!([])).await;
        heard
    });
    assert!(answer.unwrap().is_empty());
    assert_eq!(heard["exec-oob"], "query-yank");

    let (ours, mut peer) = Peer::pair();
    let (opened, ()) = tokio::join!(Qmp::open(ours, Options::default(), soon()), async {
        peer.say(r#"{"QMP": {"version": {}, "capabilities": []}}"#).await;
        let heard = peer.hear().await;
        assert_eq!(heard.get("arguments"), None);
        peer.answer(&heard, json!({})).await;
    });
    let (qmp, _) = opened.unwrap();
    let error = qmp.execute_oob(qapi::qmp::query_yank {}, soon()).await.unwrap_err();
    assert!(matches!(error, Error::NoOutOfBand { .. }));
}

#[tokio::test]
async fn the_agent_is_synced_before_the_first_command_and_after_a_lost_answer() {
    for ids in [true, false] {
        let (ours, mut peer) = Peer::pair();
        let agent = Agent::new(ours, Options::default());
        let token = |heard: &Value| heard["arguments"]["id"].clone();
        // Left over from an earlier client: an answer, an error, half a line.
        peer.stream.write_all(b"{\"return\": 5}\n{\"error\": {}}\n{\"ret").await.unwrap();
        let (pong, ()) = tokio::join!(agent.execute(qapi::qga::guest_ping {}, soon()), async {
            let line = agent_answer(&mut peer, ids, token).await;
            assert_eq!(line[0], 0xff);
            agent_answer(&mut peer, ids, |_| json!({})).await;
        });
        pong.unwrap();

        // The session is in step: no second sync.
        let (count, line) = tokio::join!(
            agent.execute_raw("guest-get-time", Value::Null, soon()),
            agent_answer(&mut peer, ids, |_| json!(1))
        );
        assert_eq!((count.unwrap(), line[0]), (json!(1), b'{'));

        // An answer that is late is not taken for the next command's.
        assert!(agent.execute_raw("guest-get-time", Value::Null, shortly()).await.is_err());
        let (count, ()) = tokio::join!(agent.execute_raw("guest-get-time", Value::Null, soon()), async {
            agent_answer(&mut peer, ids, |_| json!("stale")).await;
            let line = agent_answer(&mut peer, ids, token).await;
            assert_eq!(line[0], 0xff);
            agent_answer(&mut peer, ids, |_| json!("fresh")).await;
        });
        assert_eq!(count.unwrap(), json!("fresh"));
    }
}

#[tokio::test]
async fn dropping_the_last_handle_closes_the_stream() {
    let (qmp, _events, mut peer) = session().await;
    drop(qmp);
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(5), peer.stream.read_to_end(&mut rest)).await;
    assert_eq!(end.unwrap().unwrap(), 0);
}
