//! Tests `explain` for a policy's recipe, and for an invalid recipe file.

use testkit::command::{Scratch, netpolicy, text};

#[test]
fn explain_says_what_a_policy_comes_to() {
    let scratch = Scratch::new("recipes");
    let dir = scratch.path("none");
    let output = netpolicy(&["--recipe-dir", &dir, "explain", "latency"]);
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains(&dir) && said.contains("No such file"),
        "{said}"
    );
    std::fs::create_dir(&dir).expect("an empty directory");
    for policy in ["latency", "power"] {
        let output = netpolicy(&["--recipe-dir", &dir, "explain", policy]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        insta::assert_snapshot!(format!("explain_{policy}"), text(&output.stdout));
    }
    scratch.file("10-site.toml", "[recipe.latency.rx-usec]\nvalue = 8\n");
    let own = scratch.path("");
    let output = netpolicy(&["--recipe-dir", &own, "explain", "latency"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("did you mean `rx-usecs`?") && said.contains("10-site.toml:1:17"), "{said}");
}
