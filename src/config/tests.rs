//! The config as a whole: what parses, what every bad file is told, and that nothing makes it panic.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::{CheckKind, HttpProtocol};

const MINIMAL: &str = include_str!("../../examples/configs/minimal.yaml");
const FULL: &str = include_str!("../../examples/configs/full.yaml");
const REFERENCE: &str = include_str!("../../docs/config.md");

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// One line for each error: place, path, message, help.
fn listing(result: &Result<Config, ConfigErrors>) -> String {
    let mut out = String::new();
    match result {
        Ok(_) => out.push_str("no error\n"),
        Err(errors) => {
            for e in errors.as_slice() {
                let at = if e.path.steps().is_empty() { "-".to_owned() } else { e.path.to_string() };
                writeln!(out, "{}:{} {at}\n  {}\n  {}", e.place.line, e.place.column, e.message, e.help)
                    .unwrap();
            }
            if errors.is_truncated() {
                out.push_str("… and more\n");
            }
        }
    }
    out
}

fn bad_configs() -> Vec<PathBuf> {
    let dir = root().join("envoy/bad-config");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    files.sort();
    files
}

/// With `TIDEGATE_BLESS` set the listings are written instead of compared; read the diff before committing it.
fn compare(path: &Path, found: &str) {
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        std::fs::write(path, found).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, expected, "{}", path.display());
}

#[test]
fn every_bad_config_is_told_all_of_its_errors_with_their_places() {
    let files = bad_configs();
    assert!(files.len() >= 25, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        compare(&file.with_extension("expected"), &listing(&parse(&text)));
    }
}

#[test]
fn places_are_the_same_with_a_byte_order_mark_and_with_crlf() {
    for file in bad_configs() {
        let text = std::fs::read_to_string(&file).unwrap();
        let plain = listing(&parse(&text));
        assert_eq!(listing(&parse(&format!("\u{feff}{text}"))), plain, "{}", file.display());
        assert_eq!(listing(&parse(&text.replace('\n', "\r\n"))), plain, "{}", file.display());
    }
    for text in [MINIMAL, FULL] {
        assert_eq!(parse(&format!("\u{feff}{text}")), parse(text));
        assert_eq!(parse(&text.replace('\n', "\r\n")), parse(text));
    }
}

#[test]
fn a_minimal_config_gets_every_default() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!(config.listen.xds.to_string(), "127.0.0.1:18000");
    assert_eq!(config.listen.health.to_string(), "127.0.0.1:18003");
    let cluster = &config.clusters["llama"];
    let check = &cluster.checks.readiness;
    assert_eq!(check.interval, Duration::from_secs(1));
    assert_eq!(check.timeout, Duration::from_millis(500));
    assert_eq!(check.budget, None);
    assert_eq!((check.healthy_threshold.get(), check.unhealthy_threshold.get()), (2, 3));
    assert_eq!(check.confirm_interval, Duration::from_millis(100));
    assert_eq!(check.confirm_timeout, Duration::from_millis(250));
    assert_eq!(check.recover_interval, check.interval);
    assert_eq!(check.min_failing_time.unreachable, Duration::from_millis(200));
    assert_eq!(check.min_failing_time.timeout, Duration::from_secs(1));
    let CheckKind::Http(http) = &check.kind else { panic!("{check:?}") };
    assert_eq!((&*http.path, http.method.as_str(), http.protocol), ("/health", "GET", HttpProtocol::Http1));
    assert_eq!(http.expected_statuses, [200..=200]);
    assert!(http.reuse_connection && http.host.is_none() && http.headers.is_empty());
    assert_eq!(cluster.policy.max_ejected_percent.get(), 50);
    assert_eq!(cluster.policy.slow_weight.get(), 25);
    assert_eq!(cluster.policy.min_serving, 1);
    assert_eq!(cluster.envoy.lb_policy, LbPolicy::LeastRequest);
    assert!(cluster.envoy.bridge && !cluster.envoy.http2);
    let route = &config.listeners["ingress"].routes[0];
    assert_eq!((route.timeout, route.idle_timeout), (Duration::ZERO, Duration::from_secs(300)));
    assert_eq!(route.num_retries, 2);
    assert_eq!((config.prober.max_in_flight, config.prober.max_starts_per_second), (4096, 20_000));
    assert_eq!(config.xds.first_verdict_wait, Duration::from_secs(15));
    let gpu_a = &cluster.instances["gpu-a"];
    assert_eq!(gpu_a.weight, crate::model::Weight::BASE);
    assert_ne!(gpu_a.lifetime, cluster.instances["gpu-b"].lifetime);
}

#[test]
fn the_full_example_says_what_it_claims() {
    let full = parse(FULL).unwrap();
    let llama = &full.clusters["llama"];
    assert_eq!(llama.checks.startup.as_ref().unwrap().healthy_threshold.get(), 1);
    let inference = llama.checks.inference.as_ref().unwrap();
    let CheckKind::OpenAi(chat) = &inference.kind else { panic!() };
    assert!(chat.is_chat() && chat.budgets.gap == Some(Duration::from_secs(1)));
    let CheckKind::Http(http) = &llama.checks.readiness.kind else { panic!() };
    assert_eq!(http.expected_statuses, [200..=200, 204..=204, 300..=399]);
    assert_eq!(full.clusters["embeddings"].instances.len(), 0);
    assert_eq!(full.clusters["embeddings"].checks.readiness.kind, CheckKind::Tcp);
    // Whatever the example calls a default is one.
    let minimal = parse(MINIMAL).unwrap();
    assert_eq!((full.listen, full.prober, full.xds), (minimal.listen, minimal.prober, minimal.xds));
    assert_eq!(llama.policy, minimal.clusters["llama"].policy);
    assert_eq!(llama.envoy, minimal.clusters["llama"].envoy);
}

fn check_of(settings: &str) -> Result<crate::model::Check, ConfigErrors> {
    let text = format!("clusters: {{ c: {{ checks: {{ readiness: {{ tcp: {{}}, {settings} }} }} }} }}");
    parse(&text).map(|config| config.clusters["c"].checks.readiness.clone())
}

#[test]
fn an_inference_and_a_warmup_get_their_own_defaults() {
    let s = Duration::from_secs;
    let text = "clusters: { c: { checks: { readiness: { tcp: {} },
        inference: { openai: { path: /v1/completions, model: m } },
        warmup: { openai: { path: /v1/completions, model: m }, prompts: 1, timeout: 2s } } } }";
    let checks = parse(text).unwrap().clusters["c"].checks.clone();
    let inference = checks.inference.as_ref().unwrap();
    assert_eq!((inference.interval, inference.timeout, inference.budget), (s(30), s(10), None));
    assert_eq!((inference.confirm_interval, inference.confirm_timeout), (s(5), s(10)));
    assert_eq!((inference.recover_interval, inference.unhealthy_threshold.get()), (s(5), 2));
    let CheckKind::OpenAi(openai) = &inference.kind else { panic!("{inference:?}") };
    assert_eq!((openai.max_tokens.get(), openai.budgets), (8, crate::model::StageBudgets::default()));
    assert!(!openai.is_chat() && !openai.prompt.is_empty());
    let warmup = checks.warmup.as_ref().unwrap();
    assert_eq!((warmup.prompts.get(), warmup.last.get(), warmup.expect_latency), (1, 1, s(2)));
    // Whatever the example calls a default is one.
    let full = parse(FULL).unwrap().clusters["llama"].checks.clone();
    let example = full.inference.as_ref().unwrap();
    assert_eq!((example.interval, example.timeout), (inference.interval, inference.timeout));
    assert_eq!(example.confirm_timeout, inference.confirm_timeout);
    assert_eq!(full.warmup.as_ref().unwrap().check.interval, warmup.check.interval);
}

#[test]
fn defaults_that_depend_on_others_follow_them() {
    let fast = check_of("interval: 50ms").unwrap();
    assert_eq!(fast.timeout, Duration::from_millis(50));
    assert_eq!(fast.confirm_timeout, Duration::from_millis(25));
    assert_eq!(fast.confirm_interval, Duration::from_millis(50));
    assert_eq!(fast.recover_interval, Duration::from_millis(50));
    let slow = check_of("interval: 10s, timeout: 8s").unwrap();
    assert_eq!(slow.confirm_timeout, Duration::from_secs(4));
    assert_eq!(slow.recover_interval, Duration::from_secs(10));
    assert_eq!(
        check_of("min_failing_time: { unreachable: 0s }").unwrap().min_failing_time.unreachable,
        Duration::ZERO
    );
}

#[test]
fn the_system_may_choose_tidegates_own_ports() {
    let config = parse("listen: { xds: '127.0.0.1:0', health: '127.0.0.1:0' }\nclusters: {}\n").unwrap();
    assert_eq!(config.listen.xds.port(), 0);
    assert!(config.clusters.is_empty());
}

#[test]
fn a_new_address_or_a_new_token_is_a_new_process() {
    let of = |instance: &str| {
        let text = format!(
            "clusters: {{ c: {{ instances: {{ i: {{ {instance} }} }}, checks: {{ readiness: {{ tcp: {{}} }} }} }} }}"
        );
        parse(&text).unwrap().clusters["c"].instances["i"].lifetime.clone()
    };
    assert_eq!(of("address: '10.0.0.1:1'"), of("address: '10.0.0.1:1', weight: 5"));
    assert_ne!(of("address: '10.0.0.1:1'"), of("address: '10.0.0.2:1'"));
    assert_eq!(of("address: '10.0.0.1:1', lifetime: a"), of("address: '10.0.0.2:1', lifetime: a"));
    assert_ne!(of("address: '10.0.0.1:1', lifetime: a"), of("address: '10.0.0.1:1', lifetime: b"));
}

#[test]
fn what_is_not_text_is_told_where_it_stops_being_text() {
    let errors = parse_bytes(b"clusters:\n  a\xff: {}\n").unwrap_err();
    let [error] = errors.as_slice() else { panic!("{errors}") };
    assert_eq!((error.place.line, error.place.column), (2, 4));
    assert!(error.message.contains("UTF-8"));
    assert!(parse_bytes(MINIMAL.as_bytes()).is_ok());
}

#[test]
fn a_file_above_the_limit_is_not_read() {
    let errors = parse(&" ".repeat(MAX_BYTES + 1)).unwrap_err();
    assert!(errors.to_string().contains("at most 16777216"), "{errors}");
}

#[test]
fn a_file_with_too_many_values_is_not_kept_in_memory() {
    let text = format!("clusters: [{}]", "1,".repeat(1_100_000));
    let errors = parse(&text).unwrap_err();
    let [error] = errors.as_slice() else { panic!("{errors}") };
    assert!(error.message.contains("more than 1000000 values"), "{errors}");
}

#[test]
fn ten_thousand_instances_are_read_and_the_one_that_is_wrong_is_found() {
    let mut text = String::from("clusters:\n  c:\n    checks: { readiness: { tcp: {} } }\n    instances:\n");
    for i in 0..10_000 {
        writeln!(text, "      i{i}: {{ address: \"10.{}.{}.{}:80\" }}", i / 65_536, i / 256 % 256, i % 256)
            .unwrap();
    }
    assert_eq!(parse(&text).unwrap().clusters["c"].instances.len(), 10_000);
    let errors = parse(&text.replace("i9999:", "i9999: { adress: x }\n      j:")).unwrap_err();
    assert_eq!(errors.as_slice().len(), 1, "{errors}");
    assert_eq!(errors.as_slice()[0].place.line, 10_004);
}

/// Every key of the raw structs: lines `pub(super) NAME: Option<…>`.
fn keys() -> Vec<&'static str> {
    include_str!("raw.rs")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub(super) ")?.split_once(": Option<"))
        .map(|(key, _)| key)
        .collect()
}

#[test]
fn every_key_is_in_the_reference_and_in_the_full_example() {
    let keys = keys();
    assert!(keys.len() > 50, "{keys:?}");
    for key in keys {
        assert!(REFERENCE.contains(&format!("`{key}`")), "docs/config.md lacks `{key}`");
        assert!(FULL.contains(&format!("{key}:")) || key == "tcp", "full.yaml lacks {key}");
    }
}

#[test]
fn every_example_in_the_reference_parses() {
    let examples: Vec<&str> =
        REFERENCE.split("```yaml\n").skip(1).filter_map(|s| s.split("```").next()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        assert_eq!(listing(&parse(example)), "no error\n", "{example}");
    }
}

/// Errors always have a place in the text, on character boundaries, and are in its order.
fn sane(text: &str) {
    let Err(errors) = parse(text) else { return };
    assert!(!errors.as_slice().is_empty() && errors.as_slice().len() <= MAX_ERRORS);
    let mut last = 0;
    for error in errors.as_slice() {
        let span = error.place.span.clone();
        assert!(text.get(span.clone()).is_some(), "{error:?}");
        assert!(span.start >= last, "{errors:?}");
        last = span.start;
        assert!(!error.message.is_empty() && !error.help.is_empty(), "{error:?}");
        assert!(error.message.len() < 2_000, "{error:?}");
        assert!(error.place.line >= 1 && error.place.column >= 1);
        let line = text[..span.start].matches('\n').count() + 1;
        assert!(error.place.line.abs_diff(line) <= text.matches('\r').count(), "{error:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse_bytes(&bytes);
        sane(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_yaml_like_text_makes_it_panic(text in "([a-z]{0,3}[:\\-?!&*<>|\\[\\]{}#%'\" \t\n,0-9.~]{0,4}){0,40}") {
        sane(&text);
    }

    #[test]
    fn no_mutation_of_a_good_config_makes_it_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..12, any::<prop::sample::Index>()), 1..6),
    ) {
        const BITS: [&str; 11] = [":", "\n", "  ", "\t", "{", "}", "[", "- ", "0", "*a", "\u{feff}ü"];
        let mut chars: Vec<char> = FULL.chars().collect();
        for (at, bit, to) in edits {
            let at = at.index(chars.len());
            match BITS.get(bit) {
                Some(bit) => { chars.splice(at..at, bit.chars()); }
                // Without a bit to insert: cut a piece out, which is what a half-written file looks like.
                None => { chars.drain(at..(at + 1 + to.index(200)).min(chars.len())); }
            }
        }
        sane(&chars.into_iter().collect::<String>());
    }
}
