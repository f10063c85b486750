//! "Did you mean": the nearest of some known words.
//!
//! Pure: no I/O. Used for unknown keys, unknown choices and unknown cluster names.

/// Longer words are no slips of the pen, and comparing costs the product of the lengths.
const MAX_LEN: usize = 64;

/// The question to ask about `given`, if some of `known` is near enough to be meant.
pub(super) fn did_you_mean<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    let words: Vec<String> = nearest(given, known).iter().take(3).map(|word| format!("`{word}`")).collect();
    (!words.is_empty()).then(|| format!("did you mean {}?", words.join(" or ")))
}

/// The words of `known` nearest to `given`, all of one distance: at most a third of the letters differ, capitals
/// and `-` for `_` aside. The end of a word stands for the word: `treshold` is both thresholds.
pub(super) fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Vec<&'k str> {
    if given.is_empty() || given.len() > MAX_LEN {
        return Vec::new();
    }
    let given = folded(given);
    let near = |word: &str| {
        let word = folded(word);
        let distance = distance(&given, &word);
        (distance <= (word.len().max(given.len()) / 3).max(1)).then_some(distance)
    };
    // A whole word is nearer than the end of one.
    let mut best = (usize::MAX, true);
    let mut words = Vec::new();
    for word in known.into_iter().filter(|word| word.len() <= MAX_LEN) {
        let ends = word.match_indices('_').filter_map(|(at, _)| word.get(at + 1..));
        let whole = near(word).map(|distance| (distance, false));
        let ends = ends.filter_map(|end| near(end).map(|distance| (distance, true)));
        let Some(found) = whole.into_iter().chain(ends).min() else { continue };
        if found < best {
            best = found;
            words.clear();
        }
        if found == best {
            words.push(word);
        }
    }
    words
}

fn folded(word: &str) -> Vec<char> {
    word.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Insertions, deletions and replacements from `a` to `b`, and neighbours that changed places (optimal string
/// alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut last = None;
    for (i, x) in a.iter().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        let mut left = i + 1;
        next.push(left);
        let mut last_y = None;
        for (j, (y, pair)) in b.iter().zip(row.windows(2)).enumerate() {
            let &[diagonal, above] = pair else { continue };
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            if last == Some(y) && last_y == Some(x) && j > 0 {
                // Row i - 1, column j - 1 of the matrix whose rows and columns begin with the empty word.
                left = left.min(before.get(j - 1).map_or(usize::MAX, |d| d + 1));
            }
            next.push(left);
            last_y = Some(y);
        }
        last = Some(x);
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_recognised_and_a_different_word_is_not() {
        let keys =
            ["healthy_threshold", "unhealthy_threshold", "interval", "timeout", "tcp", "confirm_interval"];
        let table: [(&str, &[&str]); 9] = [
            ("treshold", &["healthy_threshold", "unhealthy_threshold"]),
            ("healthy_treshold", &["healthy_threshold"]),
            ("unhealthy-threshold", &["unhealthy_threshold"]),
            ("Interval", &["interval"]),
            ("timout", &["timeout"]),
            ("tpc", &["tcp"]),
            ("colour", &[]),
            ("", &[]),
            ("ü", &[]),
        ];
        for (given, meant) in table {
            assert_eq!(nearest(given, keys), meant, "{given}");
        }
        assert!(nearest(&"x".repeat(1_000), keys).is_empty());
        assert_eq!(
            did_you_mean("treshold", keys).as_deref(),
            Some("did you mean `healthy_threshold` or `unhealthy_threshold`?")
        );
    }
}
