//! What `tc` prints with `-o json` and `-o jsonl`, as a JSON Schema.

use serde_json::Value;

use super::schema::{Document, Fields, Form, schema};

const REFUSED: Fields = &[
    ("line", Form::Count, "the line of the file"),
    ("errno", Form::Number, "the kernel's number; 0 where the installed tc was refused"),
    ("words", Form::Text, "the kernel's words, with the number's name; or tc's"),
];

const WRONG: Fields = &[
    ("line", Form::Count, "the line of the file"),
    ("column", Form::Count, "the first wrong byte on it, from 1"),
    ("words", Form::Text, "what is wrong"),
    ("help", Form::Hint, "what would have been right; null where that is not one thing"),
];

const LOAD: Fields = &[
    ("file", Form::Text, "the file"),
    ("commands", Form::Count, "all commands: loaded + refused + not_sent + not_loaded + skipped + wrong"),
    ("loaded", Form::Count, "what the kernel took"),
    ("refused", Form::List(REFUSED), "what it refused"),
    ("not_sent", Form::Lines, "lines that were not sent, because one before them was refused"),
    ("not_loaded", Form::Lines, "lines whose answers were lost and that a dump does not show"),
    ("settled_by_dump", Form::Count, "how many answers were lost and settled by a dump"),
    ("skipped", Form::Count, "rules that were there already (--resume)"),
    ("wrong", Form::Count, "lines that are wrong and were left out (--keep-going)"),
    ("wrong_lines", Form::List(WRONG), "the first 1000 of them"),
    ("interrupted", Form::Truth, "whether a signal has ended it"),
    ("undone", Form::Truth, "whether all was taken back (--atomic, --swap)"),
    ("chains", Form::Lines, "the chains that are in force now (--swap)"),
    ("by_tc", Form::Count, "lines among those loaded that the installed tc has done (--with-tc)"),
    ("shared_actions", Form::Count, "different actions that were shared (--share-actions)"),
    ("cookies", Form::Count, "rules that were sent with a cookie that stands for them (--cookies)"),
    (
        "counters_anyway",
        Form::Counts,
        "actions of kinds that have a counter for each CPU whatever they ask for, by kind",
    ),
    (
        "bursts_cut",
        Form::Count,
        "police actions whose burst takes longer at its rate than 274 s, and is sent as that much",
    ),
    ("seconds", Form::Amount, "how long it took"),
    ("rate", Form::Amount, "what the kernel took in a second"),
];

const SURVEY: Fields = &[
    ("file", Form::Text, "the file"),
    ("commands", Form::Count, "all commands that are right"),
    ("rules", Form::Count, "rules among them"),
    ("groups", Form::Count, "hooks, chains and priorities that rules are in"),
    ("for_tc", Form::Count, "lines that the installed tc is given, which are not checked (--with-tc)"),
    ("wrong", Form::Count, "lines that are wrong"),
    ("wrong_lines", Form::List(WRONG), "the first 1000 of them"),
];

const DIFF: Fields = &[
    ("file", Form::Text, "the file"),
    ("same", Form::Count, "rules that are as the file has them"),
    ("missing", Form::Lines, "lines whose rule is not there"),
    ("different", Form::Lines, "lines whose handle is there with another rule"),
    ("misplaced", Form::Lines, "lines whose rule has its turn in another order than the file's"),
    ("extra", Form::Count, "rules in the file's priorities that it does not have"),
    ("extra_rules", Form::Texts, "the first of them, each as the line that would add it"),
    (
        "not_compared",
        Form::Count,
        "lines about queueing disciplines and classes that were not compared (--with-tc)",
    ),
    ("unknown", Form::Count, "rules of kinds that are not known"),
    (
        "by_cookie",
        Form::Count,
        "rules of the file that were known by their cookies: what they do was not looked at",
    ),
    ("in_hardware", Form::Count, "rules of the file that hardware has"),
    ("not_in_hardware", Form::Count, "rules of the file that hardware does not have, as the kernel says"),
    ("changing", Form::Truth, "whether rules changed all the time: the figures are of no one moment"),
    ("seconds", Form::Amount, "how long it took"),
];

const DUMP: Fields = &[
    ("lines", Form::Texts, "the lines of the batch file, in order"),
    ("left_out", Form::Count, "rules that have no words there"),
];

const ROW: Fields = &[
    ("criterion", Form::Text, "what was measured"),
    ("goal", Form::Text, "what is wanted"),
    ("measured", Form::Text, "what came out"),
    ("met", Form::Verdict, "whether that is as wanted; null for what is not judged"),
];

const BENCH: Fields = &[
    ("repeats", Form::Count, "how often each was repeated"),
    ("rules", Form::Count, "how many rules each load had"),
    ("kernel", Form::Text, "the kernel"),
    ("rows", Form::List(ROW), "the criteria"),
];

/// Each kind of document, and its fields. In lines (`-o jsonl`), a refusal and a row of the bench are documents too.
const DOCUMENTS: &[Document] = &[
    ("tc-load", "what became of a load", LOAD),
    ("tc-refused", "a refusal, in lines", REFUSED),
    (
        "tc-survey",
        "what a file says: of --dry-run, and of a file with wrong lines, of which nothing is sent",
        SURVEY,
    ),
    ("tc-diff", "a file against the kernel", DIFF),
    ("tc-dump", "the kernel's rules", DUMP),
    ("tc-bench", "a benchmark", BENCH),
    ("tc-bench", "one criterion of a benchmark, in lines", ROW),
];

/// The schema that every document of `tc` meets.
pub(crate) fn tc_json_schema() -> Value {
    schema("tc", "netpolicy tc, with -o json, and each line with -o jsonl", DOCUMENTS)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::render::report::to_json;
    use crate::render::schema::misfit::misfit;
    use crate::render::schema::object;
    use crate::render::{
        BenchRow, DiffReport, DumpReport, LoadReport, RefusedLine, RuleBenchReport, SurveyReport, WrongLine,
    };

    #[test]
    fn every_document_of_tc_has_the_fields_that_the_schema_describes() {
        let refused = || RefusedLine { line: 7, errno: 17, words: "File exists".to_owned() };
        let row = || BenchRow {
            criterion: "a".to_owned(),
            goal: String::new(),
            measured: "b".to_owned(),
            met: None,
        };
        let wrong = || {
            let line = |help| WrongLine { line: 7, column: 1, words: "not known".to_owned(), help };
            vec![line(None), line(Some("did you mean `filter`?".to_owned()))]
        };
        let load = LoadReport {
            refused: vec![refused()],
            wrong_lines: wrong(),
            not_sent: vec![8, 9],
            counters_anyway: [("police", 3)].into_iter().collect(),
            seconds: 0.5,
            ..LoadReport::default()
        };
        let diff = DiffReport {
            missing: vec![1],
            extra_rules: vec!["filter add".to_owned()],
            ..DiffReport::default()
        };
        let bench = RuleBenchReport { repeats: 7, rules: 1, kernel: "6.18".to_owned(), rows: vec![row()] };
        let values = [
            to_json(&load),
            to_json(&refused()),
            to_json(&SurveyReport { wrong_lines: wrong(), ..SurveyReport::default() }),
            to_json(&diff),
            to_json(&DumpReport { lines: vec!["filter add".to_owned()], left_out: 1 }),
            to_json(&bench),
            to_json(&row()),
        ];
        for (value, (kind, _, fields)) in values.iter().zip(DOCUMENTS) {
            assert_eq!(misfit(value, &object(fields)), None, "{kind}");
        }
        // What does not fit is found.
        let mut wrong = to_json(&load);
        wrong["refused"][0]["line"] = Value::from("7");
        assert!(misfit(&wrong, &object(LOAD)).is_some());
        wrong = to_json(&load);
        wrong["more"] = Value::from(1);
        assert!(misfit(&wrong, &object(LOAD)).is_some());
    }
}
