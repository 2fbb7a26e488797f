//! Patterns that stand for calls, such as `ls **`: any call of `ls`.

use super::Analysis;

/// Whether this pattern, a program and ` **`, stands for all that a text runs: the text is understood, and every program
/// in it is the pattern's. `ls **` covers `ls | ls -l`, but neither `ls; rm x` nor `env ls` nor `/tmp/ls`.
#[must_use]
pub fn covers(pattern: &str, analysis: &Analysis) -> bool {
    let Some(program) = pattern.strip_suffix(" **") else { return false };
    analysis.understood && !analysis.programs.is_empty() && analysis.programs.iter().all(|called| called == program)
}

/// The pattern that covers a text; none if it runs several programs or is not understood.
#[must_use]
pub fn permission_pattern(analysis: &Analysis) -> Option<String> {
    let pattern = format!("{} **", analysis.programs.first()?);
    covers(&pattern, analysis).then_some(pattern)
}

#[cfg(test)]
mod tests {
    use super::super::analyze;
    use super::*;

    fn pattern(text: &str) -> Option<String> {
        permission_pattern(&analyze(text))
    }

    #[test]
    fn a_pattern_covers_its_program_alone() {
        for text in ["ls", "ls -la /tmp", "ls | ls", "l's' \"$x\"", "if ls; then ls; fi > x"] {
            assert!(covers("ls **", &analyze(text)), "{text}");
        }
        for text in ["", "x=1", "ls; rm x", "ls $(rm x)", "env ls", "/tmp/ls", "ls &&", "PATH=. ls", "$x", "lsof"] {
            assert!(!covers("ls **", &analyze(text)), "{text}");
        }
        for other in ["", "**", " **", "ls", "ls *", "l **", "ls ** **"] {
            assert!(!covers(other, &analyze("ls")), "{other}");
        }
    }

    #[test]
    fn the_pattern_is_of_the_only_program() {
        assert_eq!(pattern("ls -la /tmp").as_deref(), Some("ls **"));
        assert_eq!(pattern("  \n make\tall").as_deref(), Some("make **"));
        assert_eq!(pattern("A=1 pwd").as_deref(), Some("pwd **"));
        for text in ["", " ", "ls; rm -rf /", "ls `rm x`", "eval ls", "ls '"] {
            assert_eq!(pattern(text), None, "{text}");
        }
    }
}
