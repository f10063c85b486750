//! `tidegate bootstrap` on the real binary, and the files in `envoy/` in the real Envoy's eyes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_yaml::Value;
use tidegate::testing::parts;

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn bootstrap(args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("bootstrap")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The bootstrap, read back.
fn printed(args: &[&str]) -> Value {
    let ran = bootstrap(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
    serde_yaml::from_str(&ran.stdout).unwrap()
}

/// Discovery type, address and port of the cluster `tidegate`.
fn control_plane(bootstrap: &Value) -> (&str, &str, u64) {
    let cluster = &bootstrap["static_resources"]["clusters"][0];
    let endpoint = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    let address = &endpoint["address"]["socket_address"];
    (
        cluster["type"].as_str().unwrap(),
        address["address"].as_str().unwrap(),
        address["port_value"].as_u64().unwrap(),
    )
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy").join(name)
}

/// Asks the real Envoy whether it would start with this.
fn validate(path: &Path) {
    let envoy = parts::envoy_binary().unwrap();
    let output = Command::new(envoy)
        .args(["--mode", "validate", "--disable-hot-restart", "--log-level", "error", "-c"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", path.display());
}

#[test]
fn the_bootstraps_in_the_repository_are_what_the_program_prints() {
    for (name, protocol) in [("bootstrap-delta.yaml", "delta"), ("bootstrap-sotw.yaml", "sotw")] {
        let ran = bootstrap(&["--node-id", "example", "--protocol", protocol]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        let kept = std::fs::read_to_string(file(name)).unwrap();
        assert_eq!(kept, ran.stdout, "print it again: tidegate bootstrap --node-id example > envoy/{name}");
    }
    let default = bootstrap(&["--node-id", "example"]).stdout;
    assert_eq!(default, std::fs::read_to_string(file("bootstrap-delta.yaml")).unwrap());
}

#[test]
fn the_real_envoy_takes_every_bootstrap_in_the_repository() {
    for name in ["bootstrap-delta.yaml", "bootstrap-sotw.yaml", "eds-only.yaml", "existing.yaml"] {
        validate(&file(name));
    }
}

#[test]
fn the_real_envoy_takes_odd_names_ipv6_dns_and_an_admin() {
    let scratch = tempfile::tempdir().unwrap();
    for (nth, xds) in ["[::1]:18000", "tidegate.infra.svc:18000"].into_iter().enumerate() {
        let ran = bootstrap(&["--node-id", "a \"b\"\n# {c}: d", "--xds", xds, "--admin", "127.0.0.1:9901"]);
        let path = scratch.path().join(format!("{nth}.yaml"));
        std::fs::write(&path, ran.stdout).unwrap();
        validate(&path);
    }
}

#[test]
fn a_node_id_stays_one_string_whatever_is_in_it() {
    let odd =
        ["no", "1.10", "a \"b\" 'c'", "a\nadmin: {}\n", "# a: b", "{a}", "é\t\\n\u{2028}", " ", "*a", "%"];
    for id in odd {
        let bootstrap = printed(&["--node-id", id, "--node-cluster", id]);
        assert_eq!(bootstrap["node"]["id"].as_str(), Some(id));
        assert_eq!(bootstrap["node"]["cluster"].as_str(), Some(id));
        assert!(bootstrap.get("admin").is_none(), "{id:?}");
    }
}

#[test]
fn tidegate_may_have_an_ipv4_address_an_ipv6_address_or_a_name() {
    for (xds, expected) in [
        ("10.0.0.5:18000", ("STATIC", "10.0.0.5", 18000)),
        ("[fd00::5]:443", ("STATIC", "fd00::5", 443)),
        ("tidegate.infra.svc:18000", ("STRICT_DNS", "tidegate.infra.svc", 18000)),
        ("localhost:1", ("STRICT_DNS", "localhost", 1)),
    ] {
        assert_eq!(control_plane(&printed(&["--node-id", "x", "--xds", xds])), expected);
    }
}

#[test]
fn the_protocol_is_the_one_asked_for_and_the_admin_is_where_it_was_put() {
    let bootstrap = printed(&["--node-id", "x", "--protocol", "sotw", "--admin", "[::1]:9901"]);
    assert_eq!(bootstrap["dynamic_resources"]["ads_config"]["api_type"].as_str(), Some("GRPC"));
    let admin = &bootstrap["admin"]["address"]["socket_address"];
    assert_eq!((admin["address"].as_str(), admin["port_value"].as_u64()), (Some("::1"), Some(9901)));
}

#[test]
fn an_address_that_is_none_is_one_clear_error_and_exit_code_1() {
    for xds in ["", "host", "host:", "host:0", "host:65536", "::1:18000", "http://host:18000", "a b:1"] {
        let ran = bootstrap(&["--node-id", "x", "--xds", xds]);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{xds:?}");
        let expected = format!("error: --xds {xds:?} is not HOST:PORT; write for example 10.0.0.5:18000\n");
        assert_eq!(ran.stderr, expected);
    }
    let ran = bootstrap(&["--node-id", ""]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("--node-id must not be empty"), "{}", ran.stderr);
}

#[test]
fn a_wrong_command_line_is_exit_code_64() {
    for args in [&[][..], &["--node-id", "x", "--admin", "host:1"], &["--node-id", "x", "--protocol", "grpc"]]
    {
        let ran = bootstrap(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{args:?}");
        assert!(!ran.stderr.is_empty());
    }
}
