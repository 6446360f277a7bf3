//! Tests that the snippets of README.md and of every page of docs/ are right. CONTRIBUTING.md lists the conventions.

mod expected;
mod page;
mod session;
mod translation;

use std::path::{Path, PathBuf};

use clap::Command;
use serde_json::Value;
use slidegate_server::Config;

use self::page::Block;
use self::session::Session;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Collects the files below a folder whose name ends in `extension`, sorted.
fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|actual| actual == extension) {
            found.push(path);
        }
    }
}

/// Every page, by its path from the root of the repository: the READMEs and all pages of docs/.
fn pages() -> Vec<String> {
    let root = root();
    let entries = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let is_readme = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("README") && name.ends_with(".md")
    };
    let mut found: Vec<PathBuf> = entries.filter(is_readme).collect();
    collect(&root.join("docs"), "md", &mut found);
    found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect()
}

/// Blocks of a page that are not ignored.
fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    page::blocks(page, &text).into_iter().filter(|block| block.value("ignore").is_none()).collect()
}

/// Applies a check to all blocks of a language. The failures of all pages are reported together.
#[track_caller]
fn check(language: &str, least: usize, check: impl Fn(&Block) -> Result<(), String>) {
    let blocks: Vec<Block> = pages().iter().flat_map(|page| blocks(page)).collect();
    let blocks: Vec<&Block> = blocks.iter().filter(|block| block.language == language).collect();
    let failures = blocks.iter().filter_map(|block| {
        let problem = check(block).err()?;
        Some(format!("{}: {problem}", block.place()))
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(blocks.len() >= least, "{} blocks", blocks.len());
}

/// A page that is not in the summary is not in the book.
#[test]
fn summary_lists_every_page() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let is_listed = |page: &String| {
        let path = page.strip_prefix("docs/");
        path.is_none_or(|path| path == "SUMMARY.md" || summary.contains(&format!("]({path})")))
    };
    let missing: Vec<String> = pages().into_iter().filter(|page| !is_listed(page)).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

/// Every word after the language is one of those that CONTRIBUTING.md lists.
#[test]
fn info_strings_are_known() {
    let mut problems = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(root().join(&page)).unwrap();
        for block in page::blocks(&page, &text) {
            let known = |(name, value): &(String, String)| match name.as_str() {
                "file" | "for" | "ignore" => !value.is_empty(),
                "rule" | "invalid" => value.is_empty() && block.language == "yaml",
                _ => false,
            };
            if !block.language.bytes().all(|byte| byte.is_ascii_alphanumeric())
                || !block.words.iter().all(known)
            {
                problems.push(format!("{}: ```{} {:?}", block.place(), block.language, block.words));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn yaml_blocks_are_accepted() {
    check("yaml", 20, |block| {
        for document in block.text.split("\n---\n") {
            if block.value("for").is_some() {
                serde_saphyr::from_str::<Value>(document).map_err(|error| error.to_string())?;
                continue;
            }
            let text = configuration(block, document);
            match (Config::parse(&text), block.value("invalid")) {
                (Ok(_), None) | (Err(_), Some(_)) => {}
                (Ok(_), Some(_)) => return Err("the configuration is valid".into()),
                (Err(error), None) => return Err(format!("{error}\n{text}")),
            }
        }
        Ok(())
    });
}

/// Returns a whole configuration that contains this part.
fn configuration(block: &Block, text: &str) -> String {
    let has = |field: &str| text.lines().any(|line| line.trim_start().starts_with(field));
    if block.value("rule").is_some() {
        let mut rule = String::from("rules:\n  - name: example\n");
        if !has("limit:") {
            rule += "    limit: 100\n";
        }
        if !has("window:") {
            rule += "    window: 1s\n";
        }
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let margin = lines.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
        let lines = text.lines().map(|line| format!("    {}\n", line.get(margin..).unwrap_or_default()));
        return rule + &lines.collect::<String>();
    }
    let is_whole = text.lines().any(|line| line.starts_with("rules:") || line.starts_with('{'));
    if is_whole { text.to_owned() } else { format!("{text}\nrules: []\n") }
}

/// A block is one value, or one value per line. `…` stands for members or items that are left out.
#[test]
fn json_blocks_parse() {
    check("json", 3, |block| {
        let text = block.text.replace(",…", "").replace("…,", "").replace(":…", ":null").replace('…', "");
        let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        parse(&text).map(drop).or_else(|error| {
            let mut lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.try_for_each(|line| parse(line).map(drop)).map_err(|_| error)
        })
    });
}

/// A Rust block is a part of an example or of a documentation test, both of which are compiled and run. `// …` stands for any
/// lines.
#[test]
fn rust_blocks_are_parts_of_compiled_code() {
    let mut files = Vec::new();
    collect(&root().join("crates/slidegate/examples"), "rs", &mut files);
    collect(&root().join("crates/slidegate/src"), "rs", &mut files);
    let without_comment = |line: &str| {
        let line = line.trim();
        let text = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).unwrap_or(line);
        text.trim().to_owned()
    };
    let code: Vec<Vec<String>> = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap().lines().map(without_comment).collect())
        .collect();
    check("rust", 5, |block| {
        let lines: Vec<&str> = block.text.lines().map(str::trim).collect();
        let runs: Vec<&[&str]> = lines.split(|line| line.starts_with("// …")).collect();
        let contains = |file: &Vec<String>| {
            let mut rest = file.as_slice();
            runs.iter().all(|run| {
                let found = rest.windows(run.len().max(1)).position(|window| window.iter().eq(run.iter()));
                let after = if run.is_empty() { Some(0) } else { found.map(|at| at + run.len()) };
                after.is_some_and(|after| {
                    rest = &rest[after..];
                    true
                })
            })
        };
        match code.iter().any(contains) {
            true => Ok(()),
            false => Err("not a part of an example or of a documentation test of the library".into()),
        }
    });
}

/// Commands in `sh` blocks are not run. The test checks that their subcommands, flags and files exist.
#[test]
fn sh_blocks_name_flags_that_exist() {
    let program = slidegate_server::command();
    check("sh", 15, |block| {
        for words in command_lines(&block.text)? {
            for (n, word) in words.iter().enumerate() {
                let word = word.trim_start_matches("./");
                let is_file =
                    ["scripts/", "examples/", "benchmarks/"].iter().any(|start| word.starts_with(start));
                if is_file && !root().join(word).exists() {
                    return Err(format!("there is no {word}"));
                }
                let is_end = |word: &String| ["&&", "||", "|", ";", "&", ">", "<"].contains(&word.as_str());
                let begins = n == 0 || is_end(&words[n - 1]) || words[n - 1].contains('=');
                if word == "slidegate" && begins {
                    let arguments = words[n + 1..].iter().take_while(|word| !is_end(word));
                    check_flags(&program, arguments.map(String::as_str))?;
                }
            }
        }
        Ok(())
    });
}

/// Splits a script into the words of its lines. A line continues after `\\` and within quotes.
fn command_lines(script: &str) -> Result<Vec<Vec<String>>, String> {
    let (mut lines, mut open) = (Vec::new(), String::new());
    for line in script.replace("\\\n", " ").lines() {
        open = open + line + "\n";
        if let Some(words) = shlex::split(&open) {
            lines.push(words);
            open.clear();
        }
    }
    if open.is_empty() { Ok(lines) } else { Err(format!("a quote is not closed: {open}")) }
}

/// Checks the words of one command line after the name of the program.
fn check_flags<'a>(program: &Command, words: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut command = program;
    let mut is_first = true;
    for word in words {
        let Some(flag) = word.strip_prefix("--") else {
            if let Some(subcommand) = command.find_subcommand(word) {
                command = subcommand;
            } else if is_first && !word.starts_with('-') {
                return Err(format!("`{word}` is not a subcommand"));
            }
            is_first = false;
            continue;
        };
        is_first = false;
        let flag = flag.split('=').next().unwrap_or_default();
        let has = |arg: &clap::Arg| {
            arg.get_long() == Some(flag) || arg.get_all_aliases().unwrap_or_default().contains(&flag)
        };
        if !["help", "version", ""].contains(&flag) && !command.get_arguments().any(has) {
            return Err(format!("`slidegate {}` has no flag --{flag}", command.get_name()));
        }
    }
    Ok(())
}

/// Runs the `console` blocks of all pages that a filter selects, page by page. The failures are reported together. Translations
/// are not run: `translations_agree_with_their_originals` compares them.
#[track_caller]
fn run(selects: impl Fn(&str) -> bool) {
    let is_run = |page: &String| selects(page) && translation::original(page).is_none();
    let pages: Vec<String> = pages().into_iter().filter(is_run).collect();
    let run = |page: &String| {
        let blocks = blocks(page);
        if !blocks.iter().any(|block| block.language == "console") {
            return Vec::new();
        }
        let mut session = Session::new();
        blocks.iter().flat_map(|block| session.run(block)).collect()
    };
    let failures: Vec<String> = pages.iter().flat_map(run).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

const GROUPS: [&str; 5] =
    ["README.md", "docs/tutorials/", "docs/how-to/", "docs/reference/", "docs/explanation/"];

#[test]
fn readme_runs() {
    run(|page| page == GROUPS[0]);
}

#[test]
fn tutorials_run() {
    run(|page| page.starts_with(GROUPS[1]));
}

#[test]
fn how_to_guides_run() {
    run(|page| page.starts_with(GROUPS[2]));
}

#[test]
fn reference_runs() {
    run(|page| page.starts_with(GROUPS[3]));
}

#[test]
fn explanation_runs() {
    run(|page| page.starts_with(GROUPS[4]));
}

#[test]
fn other_pages_run() {
    run(|page| !GROUPS.iter().any(|group| page.starts_with(group)));
}

/// A page that is not run because it is a translation has the commands and files of a page that is run.
#[test]
fn translations_agree_with_their_originals() {
    let (pages, mut problems, mut compared) = (pages(), Vec::new(), 0);
    let read = |page: &str| std::fs::read_to_string(root().join(page)).unwrap();
    for page in &pages {
        let Some(original) = translation::original(page) else { continue };
        if pages.contains(&original) {
            problems.extend(translation::differences((&original, &read(&original)), (page, &read(page))));
            compared += 1;
        } else {
            problems.push(format!("{page}: there is no {original}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(compared >= 5, "{compared} translations");
}

#[test]
fn wrong_flags_are_found() {
    let program = slidegate_server::command();
    let check = |line: &str| check_flags(&program, line.split(' '));
    assert_eq!(check("serve --config rules.yaml"), Ok(()));
    assert_eq!(check("import envoy FILE"), Ok(()));
    assert_eq!(check("acquire --nothing"), Err("`slidegate acquire` has no flag --nothing".into()));
    assert_eq!(check("aquire api=/login"), Err("`aquire` is not a subcommand".into()));
}
