//! Fenced blocks of a Markdown page, and the commands of a `console` block.

/// One fenced block.
#[derive(Debug)]
pub(super) struct Block {
    page: String,
    /// Line of the first line of its text, from 1.
    line: usize,
    pub(super) language: String,
    /// Words after the language: `name=value`, or a name with an empty value.
    pub(super) words: Vec<(String, String)>,
    pub(super) text: String,
}

impl Block {
    /// Returns the value of a word of the info string, or `None` if the word is not there.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|(word, _)| word == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }
}

/// Returns every fenced block of a page.
pub(super) fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((n, opening)) = lines.next() {
        let fence = opening.trim_start();
        let Some(info) = fence.strip_prefix("```") else { continue };
        let margin = opening.len() - fence.len();
        let mut words = info.split_whitespace();
        let language = words.next().unwrap_or_default().to_owned();
        let words = words.map(|word| word.split_once('=').unwrap_or((word, "")));
        let words = words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let body = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
        let without_margin = |line: &str| {
            let spaces = line.len() - line.trim_start().len();
            line[margin.min(spaces)..].to_owned() + "\n"
        };
        let text = body.map(without_margin).collect();
        blocks.push(Block { page: page.to_owned(), line: n + 2, language, words, text });
    }
    blocks
}

/// One command of a `console` block with the output that the page shows.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Run {
        command: String,
        output: Vec<String>,
    },
    /// `^C`: stop the program that was started last.
    Stop,
}

/// Returns the commands of a `console` block in order.
pub(super) fn steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line == "^C" {
            steps.push(Step::Stop);
            while lines.next_if(|line| !line.starts_with("$ ") && *line != "^C").is_some() {}
            continue;
        }
        let Some(command) = line.strip_prefix("$ ") else {
            return Err(format!("a console block begins with `$ ` or `^C`, not with `{line}`"));
        };
        let mut command = command.to_owned();
        while let Some(line) = lines.next_if(|line| command.ends_with('\\') || line.starts_with("> ")) {
            command.push('\n');
            command += line.strip_prefix("> ").unwrap_or(line);
        }
        let mut output = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ") && *line != "^C") {
            output.push(line.to_owned());
        }
        steps.push(Step::Run { command, output });
    }
    Ok(steps)
}

#[test]
fn blocks_have_words_and_text() {
    let page = "a\n\n```yaml file=a.yaml invalid\nx: 1\n```\n\n  ```sh\n  one\n    two\n  ```\n";
    let blocks = blocks("p", page);
    assert_eq!(blocks.len(), 2);
    assert_eq!((blocks[0].place().as_str(), blocks[0].text.as_str()), ("p:4", "x: 1\n"));
    assert_eq!((blocks[0].value("file"), blocks[0].value("invalid")), (Some("a.yaml"), Some("")));
    assert_eq!((blocks[1].language.as_str(), blocks[1].text.as_str()), ("sh", "one\n  two\n"));
}

#[test]
fn steps_have_commands_and_output() {
    let text = "$ a \\\n  b\n1\n2\n$ cat <<E\n> x\n> E\n^C\nstopped\n$ c\n";
    let run = |command: &str, output: &[&str]| Step::Run {
        command: command.to_owned(),
        output: output.iter().map(|line| (*line).to_owned()).collect(),
    };
    let expected = [run("a \\\n  b", &["1", "2"]), run("cat <<E\nx\nE", &[]), Step::Stop, run("c", &[])];
    assert_eq!(steps(text).unwrap(), expected);
    assert!(steps("hello").is_err());
}
