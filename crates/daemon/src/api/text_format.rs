//! Converts the metrics page to the older text format for textfile collectors: node_exporter rejects a whole
//! file if it contains a type that exists only in OpenMetrics.

/// Converts an OpenMetrics page to the text format 0.0.4: info and state sets become gauges, the counter
/// names in descriptions get the suffix `_total`, and units and the end marker are dropped.
///
/// Source: Prometheus, `docs/instrumenting/exposition_formats.md`.
pub(super) fn text_format(open_metrics: &str) -> String {
    let mut page = String::with_capacity(open_metrics.len());
    // The suffix of the sample names in the current family.
    let mut ending = "";
    for line in open_metrics.lines() {
        let description = line.strip_prefix("# ").and_then(|rest| {
            let mut words = rest.splitn(3, ' ');
            Some((words.next()?, words.next()?, words.next()?))
        });
        match description {
            Some(("TYPE", name, kind)) => {
                let kind = match kind {
                    "counter" => {
                        ending = "_total";
                        "counter"
                    }
                    "info" => {
                        ending = "_info";
                        "gauge"
                    }
                    other => {
                        ending = "";
                        if other == "stateset" { "gauge" } else { other }
                    }
                };
                page.extend(["# TYPE ", name, ending, " ", kind, "\n"]);
            }
            Some(("HELP", name, help)) => page.extend(["# HELP ", name, ending, " ", help, "\n"]),
            Some(("UNIT", ..)) => {}
            _ if line == "# EOF" => {}
            _ => page.extend([line, "\n"]),
        }
    }
    page
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn types_that_only_openmetrics_has_become_those_that_collectors_know() {
        let page = "# TYPE a info\n# HELP a An a.\na_info{version=\"1 2\"} 1\n# TYPE b stateset\n# HELP b A b.\nb{b=\"x\"} 1\n\
                    # TYPE c counter\n# HELP c Some c.\nc_total 3\n# TYPE d_seconds histogram\n# HELP d_seconds D.\n\
                    # UNIT d_seconds seconds\nd_seconds_bucket{le=\"+Inf\"} 2\n# EOF\n";
        let wanted = "# TYPE a_info gauge\n# HELP a_info An a.\na_info{version=\"1 2\"} 1\n# TYPE b gauge\n# HELP b A b.\nb{b=\"x\"} 1\n\
                      # TYPE c_total counter\n# HELP c_total Some c.\nc_total 3\n# TYPE d_seconds histogram\n# HELP d_seconds D.\n\
                      d_seconds_bucket{le=\"+Inf\"} 2\n";
        assert_eq!(text_format(page), wanted);
    }
}
