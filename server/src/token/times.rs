//! When a token is valid: its claims `exp`, `nbf` and `iat` (RFC 7519, section 4.1).

use std::time::Duration;

use super::LEEWAY_SECONDS;
use super::claims::Claims;

/// The last second of a token that is valid at `now`; times are in seconds since the epoch.
///
/// # Errors
/// Why it is not.
pub(super) fn check(claims: &Claims, now: u64, max_lifetime: Duration) -> Result<u64, String> {
    let expiry = time(claims, "exp")?.ok_or("it has no claim exp")?;
    let (not_before, issued) = (time(claims, "nbf")?, time(claims, "iat")?);
    if now > expiry.saturating_add(LEEWAY_SECONDS) {
        return Err(format!("it expired {} s ago, by the agent's clock", now - expiry));
    }
    let begin = not_before.into_iter().chain(issued).max().unwrap_or(0);
    if begin > now.saturating_add(LEEWAY_SECONDS) {
        return Err(format!("it is valid only in {} s, by the agent's clock", begin - now));
    }
    let most = max_lifetime.as_secs();
    if expiry.saturating_sub(issued.or(not_before).unwrap_or(now)) > most {
        return Err(format!("it is valid for more than {most} s (max_lifetime)"));
    }
    Ok(expiry)
}

/// A time of a claim; fractions of a second are cut off.
fn time(claims: &Claims, claim: &str) -> Result<Option<u64>, String> {
    let Some(value) = claims.get(claim) else { return Ok(None) };
    let time = value.as_u64().or_else(|| whole(value.as_f64()?));
    time.map(Some).ok_or_else(|| format!("its claim {claim} is not a time"))
}

fn whole(time: f64) -> Option<u64> {
    // beyond this range f64 is not exact, and no date is
    (time.is_finite() && (0.0..1e15).contains(&time)).then_some(time as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn at(now: u64, claims: &Value) -> Result<u64, String> {
        check(claims.as_object().unwrap(), now, Duration::from_secs(3600))
    }

    /// Also if the clock jumps to then.
    #[test]
    fn a_token_is_valid_in_its_time_and_for_no_longer_than_permitted() {
        let token = json!({"iat": NOW, "nbf": NOW, "exp": NOW + 300});
        for now in [NOW, NOW - 30, NOW + 300, NOW + 330] {
            assert_eq!(at(now, &token), Ok(NOW + 300), "{now}");
        }
        for (now, why) in [
            (NOW - 31, "it is valid only in 31 s, by the agent's clock"),
            (0, "it is valid only in 1800000000 s"),
            (NOW + 331, "it expired 31 s ago, by the agent's clock"),
            (u64::MAX, "it expired "),
        ] {
            assert!(at(now, &token).unwrap_err().starts_with(why), "{now}");
        }
    }

    #[test]
    fn the_lifetime_begins_with_the_issue_or_else_now() {
        let most = NOW + 3600;
        for claims in [
            json!({"iat": NOW - 10, "exp": most - 10}),
            json!({"nbf": NOW - 10, "exp": most - 10}),
            json!({"exp": most}),
            json!({"iat": NOW as f64 + 0.7, "exp": most as f64 + 0.2}),
        ] {
            at(NOW, &claims).unwrap();
            let mut longer = claims.clone();
            longer["exp"] = json!(claims["exp"].as_f64().unwrap() as u64 + 1);
            let why = at(NOW, &longer).unwrap_err();
            assert_eq!(why, "it is valid for more than 3600 s (max_lifetime)", "{claims}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for value in [json!("1800000000"), json!(-1), json!(-0.5), json!(1e300), json!(null), json!([NOW]), json!(true)]
        {
            for claim in ["exp", "nbf", "iat"] {
                let mut claims = json!({"exp": NOW + 60});
                claims[claim] = value.clone();
                assert_eq!(at(NOW, &claims), Err(format!("its claim {claim} is not a time")), "{value}");
            }
        }
        assert_eq!(at(NOW, &json!({"nbf": NOW})), Err("it has no claim exp".to_owned()));
    }
}
