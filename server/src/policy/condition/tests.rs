use super::*;

fn needs(rule: &str) -> Vec<String> {
    let rule = Policy::parse(None, rule).unwrap().to_pst().unwrap();
    Condition::of_clauses(rule.body()).into_iter().map(|condition| condition.text).collect()
}

#[test]
fn a_rule_needs_what_its_clauses_say() {
    let permit = |clauses: &str| needs(&format!("permit(principal, action, resource) {clauses};"));
    let forbid = |clauses: &str| needs(&format!("forbid(principal, action, resource) {clauses};"));
    let (a, b) = (r#"context.user == "nobody""#, r#"["cat", "df"].containsAll(context.programs)"#);
    let both = format!("when {{ ({a} // why\n && {b}) && context.login }}");
    assert_eq!(permit(&both), [a, b, "context.login"]);
    assert_eq!(permit("when { context.login } unless { context.terminal }"), ["context.login", "!context.terminal"]);
    assert_eq!(permit("unless { context.login || context.terminal }"), ["!context.login", "!context.terminal"]);
    assert_eq!(permit("when { context.login || context.terminal }"), ["context.login || context.terminal"]);
    assert_eq!(permit("unless { context.login && context.terminal }"), ["!(context.login && context.terminal)"]);
    assert_eq!(permit(""), [""; 0]);
    assert_eq!(
        forbid("when { context.user_id == 0 || context.uses_sudo }"),
        ["context.user_id != 0", "!context.uses_sudo"]
    );
    assert_eq!(
        forbid("unless { context.limits has cpus && context.login }"),
        ["context.limits has cpus", "context.login"]
    );
    assert_eq!(
        forbid("when { context.login } unless { context.terminal }"),
        ["!(context.login && (!context.terminal))"]
    );
}

#[test]
fn named_commands_are_found_wherever_they_are_compared() {
    let of = |clauses: &str| {
        let rule = format!("permit(principal, action, resource) {clauses};");
        named_commands(Policy::parse(None, rule).unwrap().to_pst().unwrap().body())
    };
    assert_eq!(of(r#"when { context.named_command == "a" }"#), ["a"]);
    assert_eq!(of(r#"when { context.login } unless { "a" != context.named_command }"#), ["a"]);
    let listed = r#"when { context.login || ["a", "b"].contains(context.named_command) }"#;
    assert_eq!(of(listed), ["a", "b"]);
    assert!(of(r#"when { context.named_command == "" || context.user == "a" }"#).is_empty());
    assert!(of(r#"when { context.named_command like "a*" }"#).is_empty());
}

#[test]
fn who_others_are_is_not_printed() {
    for text in [
        r#"principal == Identity::"boss""#,
        r#"context.login && [Identity::"boss"].contains(resource.owner)"#,
        r#"context.uses_sudo || principal in Role::"ops""#,
        r#"resource.owner.name like "build-*""#,
        r#"principal is Identity in Role::"ops""#,
    ] {
        let conditions = needs(&format!("forbid(principal, action, resource) unless {{ {text} }};"));
        assert_eq!(conditions.last().unwrap(), ON_THE_IDENTITY, "{text}");
    }
    let owner = "resource.owner == principal";
    assert_eq!(needs(&format!("permit(principal, action, resource) when {{ {owner} }};")), [owner]);
}

#[test]
fn no_attribute_that_a_rule_looks_at_is_missed() {
    for (clauses, looks_at) in [
        ("", Some("")),
        ("when { principal.name == \"a\" }", Some("")),
        ("when { context.user == \"a\" } unless { context[\"log\\u{69}n\"] }", Some("login user")),
        ("when { context has limits.cpus && context.limits.cpus > decimal(\"1.0\") }", Some("limits")),
        ("when { if context.login then context has timeout else context.terminal }", Some("login terminal timeout")),
        ("when { context.timeout.toMilliseconds() < 5 && -context.user_id < 0 }", Some("timeout user_id")),
        ("when { context.reason like \"a*\" || !context.understood }", Some("reason understood")),
        ("when { [[context.shell], [\"a\"]].contains([context.command]) }", Some("command shell")),
        ("when { {a: context.argv}.a.contains(\"a\") }", Some("argv")),
        ("when { context.each_command.program == \"ls\" }", Some("each_command")),
        ("when { {a: context}.a.login }", None),
        ("when { (if true then context else context).login }", None),
        ("when { context.login && [context].isEmpty() }", None),
    ] {
        let rule = Policy::parse(None, format!("permit(principal, action, resource) {clauses};")).unwrap();
        let attributes = context_attributes(rule.to_pst().unwrap().body());
        let attributes = attributes.map(|all| all.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(attributes.as_deref(), looks_at, "{clauses}");
    }
}

#[test]
fn what_a_condition_looks_at_is_known() {
    let of = |text: &str| {
        let rule = format!("permit(principal, action, resource) when {{ {text} }};");
        let rule = Policy::parse(None, rule).unwrap().to_pst().unwrap();
        let condition = Condition::of_clauses(rule.body()).remove(0);
        let attributes = condition.attributes.iter().map(|attribute| attribute.0.join(".")).collect::<Vec<_>>();
        (attributes.join(" "), condition.guards.is_some(), condition.list.is_some(), condition.is_about_principal)
    };
    for (text, attributes, guards, list, is_about_principal) in [
        ("context.user == context.reason || context.user == \"x\"", "user reason", false, false, false),
        ("context.limits.cpus < decimal(\"1.0\")", "limits.cpus", false, false, false),
        ("context.limits has cpus", "limits.cpus", true, false, false),
        ("context has limits.cpus", "limits.cpus", true, false, false),
        ("[\"a\"].containsAll(context.programs)", "programs", false, true, false),
        ("principal in Role::\"ops\" || principal.name like \"x*\"", "", false, false, true),
        ("principal.name == context.user", "user", false, false, false),
        ("resource.owner == principal", "", false, false, false),
    ] {
        assert_eq!(of(text), (attributes.to_owned(), guards, list, is_about_principal), "{text}");
    }
}
