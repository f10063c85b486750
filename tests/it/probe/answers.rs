//! What comes of every kind of answer, and of none.

use std::sync::Arc;

use tidegate::model::{Detail, HttpProtocol, Outcome, Stage};

use super::fakes::{BlackHole, Fake, Step, nobody, ok, say};
use super::{MS, PATIENCE, ask, ask_kept, ask_tcp, http};

const H1: HttpProtocol = HttpProtocol::Http1;

#[tokio::test]
async fn a_plain_yes_has_all_stage_timings() {
    let mut fake = Fake::always(vec![ok()]).await;
    let answer = ask(fake.address, http(H1), PATIENCE).await;
    assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::Status(200)));
    assert!(answer.fresh && !answer.retried);
    let (connect, headers) = (answer.timings.connect.unwrap(), answer.timings.headers.unwrap());
    assert!(connect <= headers && headers <= answer.timings.total);
    let seen = fake.seen();
    assert_eq!(seen.len(), 1);
    let head = seen[0].to_lowercase();
    assert!(head.starts_with("get /health http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: {}\r\n", fake.address)), "{head}");
    assert!(head.contains("\r\nuser-agent: tidegate/"), "{head}");
}

#[tokio::test]
async fn case_64_a_redirect_is_a_no_and_is_not_followed() {
    let mut fake = Fake::http1(|moment| {
        vec![match moment.request {
            0 => say("HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n"),
            _ => ok(),
        }]
    })
    .await;
    let answer = ask(fake.address, http(H1), PATIENCE).await;
    assert_eq!((answer.outcome, answer.detail.clone()), (Outcome::Unhealthy, Detail::Redirect(302)));
    assert!(answer.detail.to_string().contains("redirect"));
    let seen = fake.seen();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].contains("/login"));
}

#[tokio::test]
async fn a_status_outside_the_expected_ones_is_read_as_documented() {
    for (line, outcome) in [
        ("401 Unauthorized", Outcome::Misconfigured),
        ("403 Forbidden", Outcome::Misconfigured),
        ("404 Not Found", Outcome::Unhealthy),
        ("429 Too Many Requests", Outcome::Slow),
        ("500 Oops", Outcome::Unhealthy),
        ("503 Loading", Outcome::Unhealthy),
        ("101 Switching Protocols", Outcome::Unhealthy),
    ] {
        let fake = Fake::always(vec![say(&format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n"))]).await;
        assert_eq!(ask(fake.address, http(H1), PATIENCE).await.outcome, outcome, "{line}");
    }
}

#[tokio::test]
async fn a_no_in_the_head_stands_whatever_becomes_of_the_body() {
    let head = "HTTP/1.1 503 Loading\r\ncontent-length: 10\r\n\r\nhal";
    for rest in [Step::Close, Step::Reset, Step::Hang] {
        let fake = Fake::always(vec![say(head), rest]).await;
        let answer = ask(fake.address, http(H1), MS(300)).await;
        assert_eq!((answer.outcome, answer.detail), (Outcome::Unhealthy, Detail::Status(503)));
    }
}

#[tokio::test]
async fn answers_without_a_body_end_with_their_head_and_the_connection_lives_on() {
    for (method, line) in [
        (http::Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"),
        (http::Method::GET, "HTTP/1.1 204 No Content\r\n\r\n"),
        (http::Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n"),
        (http::Method::GET, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let fake = Fake::always(vec![say(line)]).await;
        let mut question = http(H1);
        question.method = method;
        question.expected_statuses = vec![200..=204, 304..=304];
        let (first, kept) = ask_kept(fake.address, question.clone(), PATIENCE, None).await;
        assert_eq!(first.outcome, Outcome::Ok, "{line}: {}", first.detail);
        let (second, _) = ask_kept(fake.address, question, PATIENCE, kept).await;
        assert_eq!((second.outcome, second.fresh, fake.connections()), (Outcome::Ok, false, 1), "{line}");
    }
}

#[tokio::test]
async fn silence_is_a_timeout_that_names_its_stage() {
    let hole = BlackHole::open().await;
    let connect = ask(hole.address, http(H1), MS(200)).await;
    assert_eq!((connect.outcome, connect.detail), (Outcome::Timeout, Detail::Stuck(Stage::Connect)));
    assert_eq!((connect.timings.connect, connect.timings.headers), (None, None));
    assert_eq!(ask_tcp(hole.address, MS(200)).await.outcome, Outcome::Timeout);

    for (steps, stage) in [
        (vec![Step::Hang], Stage::Headers),
        (vec![say("HTTP/1.1 200 OK\r\ncontent-le"), Step::Hang], Stage::Headers),
        // Slow loris: never silent, never done.
        (vec![say("HTTP/1.1 200 OK\r\nx: "), Step::Drip(b'a', MS(5))], Stage::Headers),
        (vec![say("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"), Step::Hang], Stage::Body),
        (vec![say("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n"), Step::Drip(b'a', MS(5))], Stage::Body),
    ] {
        let fake = Fake::always(steps.clone()).await;
        let answer = ask(fake.address, http(H1), MS(250)).await;
        assert_eq!((answer.outcome, answer.detail), (Outcome::Timeout, Detail::Stuck(stage)), "{steps:?}");
        assert!(answer.timings.total >= MS(250));
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_end_is_unreachable() {
    for (steps, stage) in [
        (vec![Step::Close], Stage::Headers),
        (vec![Step::Reset], Stage::Headers),
        (vec![say("HTTP/1.1 200 OK\r\ncont"), Step::Close], Stage::Headers),
        (vec![say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal"), Step::Close], Stage::Body),
        (
            vec![say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal"), Step::Close],
            Stage::Body,
        ),
    ] {
        let fake = Fake::always(steps.clone()).await;
        let answer = ask(fake.address, http(H1), PATIENCE).await;
        assert_eq!(answer.outcome, Outcome::Unreachable, "{steps:?}: {}", answer.detail);
        assert!(matches!(answer.detail, Detail::Io(at, _) if at == stage), "{steps:?}: {:?}", answer.detail);
        assert_eq!(fake.connections(), 1, "a fresh connection is not tried twice");
    }
}

#[tokio::test]
async fn a_refused_connection_is_unreachable() {
    let (address, _held) = nobody().await;
    for answer in [ask_tcp(address, PATIENCE).await, ask(address, http(H1), PATIENCE).await] {
        assert_eq!(answer.outcome, Outcome::Unreachable);
        assert!(matches!(answer.detail, Detail::Io(Stage::Connect, _)), "{:?}", answer.detail);
    }
}

#[tokio::test]
async fn connecting_is_the_answer_to_a_tcp_check() {
    let mut fake = Fake::always(vec![Step::Hang]).await;
    let answer = ask_tcp(fake.address, PATIENCE).await;
    assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::None));
    assert!(answer.timings.connect.is_some() && answer.fresh);
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn nonsense_is_unhealthy_and_says_so() {
    let giant = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(40_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(400));
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS server's idea of hello\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n".to_vec(),
        b"HTTP/1.1 2000 OK\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nbad header\xff\x00\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello".to_vec(),
        giant.into_bytes(),
        many.into_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let fake = Fake::always(vec![Step::Say(bytes), Step::Hang]).await;
        let answer = ask(fake.address, http(H1), PATIENCE).await;
        assert_eq!(answer.outcome, Outcome::Unhealthy, "{shown:?}: {}", answer.detail);
        assert!(matches!(answer.detail, Detail::Protocol(_)), "{shown:?}: {:?}", answer.detail);
    }
}

#[tokio::test]
async fn an_answer_without_end_is_judged_by_its_status_and_its_connection_dropped() {
    let chunk = format!("4000\r\n{}\r\n", "a".repeat(0x4000)).into_bytes();
    for steps in [
        vec![say("HTTP/1.1 200 OK\r\ncontent-length: 10000000000\r\n\r\n"), Step::Flood(vec![b'a'; 65_536])],
        vec![say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"), Step::Flood(chunk)],
        vec![say("HTTP/1.1 200 OK\r\n\r\n"), Step::Flood(vec![b'a'; 65_536])],
    ] {
        let fake = Fake::always(steps).await;
        let (answer, kept) = ask_kept(fake.address, http(H1), PATIENCE, None).await;
        assert_eq!((answer.outcome, answer.detail), (Outcome::Ok, Detail::Status(200)));
        assert!(kept.is_none());
    }
}

#[tokio::test]
async fn a_question_that_cannot_be_put_is_our_own_mistake() {
    let fake = Fake::always(vec![ok()]).await;
    let mut question = http(HttpProtocol::H2c);
    question.host = Some(Arc::from("no host at all"));
    assert_eq!(ask(fake.address, question, PATIENCE).await.outcome, Outcome::Misconfigured);
}
