//! Lists on the command line: comma-separated values, with quotes around values that contain commas.

/// Splits a list: `a,b`, or `"0,2","1,3"`.
///
/// # Errors
/// If a quote is not closed, or no comma follows a quoted value.
pub(super) fn listed(text: &str) -> Result<Vec<String>, &'static str> {
    let mut values = Vec::new();
    let mut rest = text;
    loop {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or("a quote is not closed")?,
            None => rest.split_at(rest.find(',').unwrap_or(rest.len())),
        };
        values.push(value.to_owned());
        if after.is_empty() {
            return Ok(values);
        }
        rest = after.strip_prefix(',').ok_or("expected a comma between two values")?;
    }
}

#[cfg(test)]
mod test {
    use super::listed;

    #[test]
    fn quotes_hold_together_what_has_commas_of_its_own() {
        let of = |text: &str| listed(text).map(|values| values.join("|"));
        assert_eq!(of("20us,200us"), Ok("20us|200us".to_owned()));
        assert_eq!(of("\"0,2\",1-3,\"5\""), Ok("0,2|1-3|5".to_owned()));
        assert_eq!(of("a,,b,"), Ok("a||b|".to_owned()));
        assert_eq!(of("\"0,2"), Err("a quote is not closed"));
        assert_eq!(of("\"0\"1"), Err("expected a comma between two values"));
    }
}
