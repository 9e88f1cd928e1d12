//! A name for a command that was given none: its package, script, module or image, since `node` and
//! `docker` name no server.

use super::sanitised;

/// Words that fit any server: their directory or scope is more telling.
const GENERIC: [&str; 15] = [
    "index",
    "main",
    "__main__",
    "server",
    "mcp",
    "mcp-server",
    "mcp_server",
    "app",
    "cli",
    "mod",
    "run",
    "start",
    "stdio",
    "bin",
    "latest",
];
/// Directories that build tools and package managers make.
const BUILT: [&str; 14] = [
    "dist",
    "build",
    "out",
    "lib",
    "src",
    "bin",
    "target",
    "release",
    "debug",
    "node_modules",
    ".bin",
    "scripts",
    ".",
    "..",
];
/// Commands within a command, at most.
const DEEPEST: usize = 4;

/// Returns a name for a command.
pub(in crate::config) fn of_command(argv: &[String]) -> String {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    telling(&words, DEEPEST)
        .and_then(|word| sanitised(&word))
        .unwrap_or_else(|| "server".to_owned())
}

fn telling(argv: &[&str], depth: usize) -> Option<String> {
    let (program, rest) = argv.split_first()?;
    let stem = stem(program);
    let inner = match (stem, rest) {
        (_, _) if depth == 0 => None,
        ("npx" | "bunx" | "uvx" | "pnpx", rest) => package(rest),
        ("npm", ["exec" | "x", rest @ ..])
        | ("pnpm" | "yarn", ["dlx", rest @ ..])
        | ("bun", ["x", rest @ ..])
        | ("pipx", ["run", rest @ ..])
        | ("uv", ["tool", "run", rest @ ..]) => package(rest),
        ("uv", rest) => after_run(rest).and_then(|rest| script_or_command(rest, depth)),
        ("node" | "tsx" | "ts-node" | "ruby" | "php" | "deno" | "bun", rest) => {
            let rest = rest.strip_prefix(&["run"]).unwrap_or(rest);
            first_word(rest, &["-r", "--require", "--import", "--loader"]).map(script)
        }
        ("docker" | "podman" | "nerdctl", rest) => after_run(rest).and_then(image),
        ("java", rest) => value_of(rest, "-jar").map(script),
        ("dotnet", rest) => value_of(rest, "--project")
            .or_else(|| first_word(rest.strip_prefix(&["run"]).unwrap_or(rest), &[]))
            .map(script),
        ("go", ["run", rest @ ..]) => first_word(rest, &[]).map(script),
        ("sh" | "bash" | "zsh", ["-c" | "-lc" | "-ec", line, ..]) => of_line(line, depth),
        ("env", rest) => {
            let rest: Vec<&str> = rest
                .iter()
                .copied()
                .skip_while(|word| word.contains('='))
                .collect();
            telling(&rest, depth - 1)
        }
        (python, rest) if python.starts_with("python") => module_or_script(rest),
        (_, _) => None,
    };
    inner.or_else(|| Some(stem.to_owned()))
}

/// The last command of a line for a shell names the server.
fn of_line(line: &str, depth: usize) -> Option<String> {
    let last = line.rsplit(['&', ';', '|']).next()?;
    let words: Vec<&str> = last.split_whitespace().filter(|word| *word != "exec").collect();
    telling(&words, depth - 1)
}

/// Returns what follows the word `run`, after flags of the program itself.
fn after_run<'a, 'w>(words: &'a [&'w str]) -> Option<&'a [&'w str]> {
    let at = words.iter().position(|word| *word == "run")?;
    words.get(at + 1..)
}

/// What `uv run` runs: a module, a script, or a command of the project.
fn script_or_command(rest: &[&str], depth: usize) -> Option<String> {
    const VALUED: [&str; 8] = [
        "--with",
        "--python",
        "-p",
        "--directory",
        "--project",
        "--env-file",
        "--extra",
        "--package",
    ];
    if let Some(module) = value_of(rest, "-m").or_else(|| value_of(rest, "--module")) {
        return Some(of_module(module));
    }
    let at = rest
        .iter()
        .position(|word| Some(*word) == first_word(rest, &VALUED))?;
    let command = rest.get(at..)?;
    let first = command.first()?;
    match first.ends_with(".py") || first.contains('/') {
        true => Some(script(first)),
        false => telling(command, depth - 1),
    }
}

fn module_or_script(rest: &[&str]) -> Option<String> {
    match value_of(rest, "-m") {
        Some(module) => Some(of_module(module)),
        None => first_word(rest, &["-W", "-X"]).map(script),
    }
}

/// `mcp-server-fetch` of `mcp_server_fetch`, `weather` of `weather.server`.
fn of_module(module: &str) -> String {
    let mut parts = module.rsplit('.');
    let telling = parts.find(|part| !GENERIC.contains(part)).unwrap_or(module);
    telling.replace('_', "-")
}

/// Returns the first word that is no flag and no value of one.
fn first_word<'w>(words: &[&'w str], valued: &[&str]) -> Option<&'w str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if valued.contains(word) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
    None
}

fn value_of<'w>(words: &[&'w str], flag: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| *word == flag)?;
    words.get(at + 1).copied()
}

/// `server-everything` of `-y @scope/server-everything@1.2`, `playwright` of `@playwright/mcp@latest`.
fn package(rest: &[&str]) -> Option<String> {
    // These carry a value that is not what runs; what runs comes after it.
    const VALUED: [&str; 12] = [
        "-p",
        "--package",
        "--from",
        "--with",
        "--python",
        "--registry",
        "--cache",
        "--prefix",
        "--index",
        "--index-url",
        "--extra-index-url",
        "--spec",
    ];
    let written = first_word(rest, &VALUED)?;
    let (scope, name) = match written.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
        Some((scope, name)) => (Some(scope), name),
        None => (None, written.rsplit('/').next().unwrap_or(written)),
    };
    let name = name.split(['@', '=', '[', '<', '>', '~']).next().unwrap_or(name);
    let name = name.strip_suffix(".git").unwrap_or(name);
    Some(match scope.filter(|_| GENERIC.contains(&name)) {
        Some(scope) => scope.to_owned(),
        None => name.to_owned(),
    })
}

/// `github-mcp-server` of `-i --rm -e TOKEN ghcr.io/github/github-mcp-server:v1`.
fn image(rest: &[&str]) -> Option<String> {
    const VALUED: [&str; 20] = [
        "-e",
        "--env",
        "--env-file",
        "-v",
        "--volume",
        "--mount",
        "-p",
        "--publish",
        "--name",
        "--network",
        "-w",
        "--workdir",
        "-u",
        "--user",
        "--entrypoint",
        "--platform",
        "-l",
        "--label",
        "--add-host",
        "--pull",
    ];
    let image = first_word(rest, &VALUED)?;
    let image = image.split('@').next().unwrap_or(image);
    let mut segments = image.rsplit('/');
    let last = segments.next()?;
    let name = last.split(':').next().unwrap_or(last);
    Some(match (GENERIC.contains(&name), segments.next()) {
        (true, Some(owner)) => owner.to_owned(),
        (true, None) | (false, _) => name.to_owned(),
    })
}

/// `weather` of `weather.py` and of `/srv/weather/dist/index.js`.
fn script(path: &str) -> String {
    let name = stem(path);
    if !GENERIC.contains(&name) {
        return name.to_owned();
    }
    let mut directories = path.rsplit(['/', '\\']).skip(1);
    let telling = directories.find(|directory| !directory.is_empty() && !BUILT.contains(directory));
    telling.unwrap_or(name).to_owned()
}

/// Returns the last part of a path, without the extension of a program or script.
fn stem(program: &str) -> &str {
    let base = program
        .rsplit(['/', '\\'])
        .find(|part| !part.is_empty() && *part != ".")
        .unwrap_or(program);
    for extension in [
        ".exe", ".cmd", ".bat", ".sh", ".js", ".mjs", ".cjs", ".ts", ".mts", ".py", ".rb", ".php", ".jar",
        ".dll", ".csproj", ".go",
    ] {
        if let Some(stem) = base.strip_suffix(extension)
            && !stem.is_empty()
        {
            return stem;
        }
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn named(name: &str, lines: &[&str]) {
        for line in lines {
            let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(of_command(&argv), name, "{line}");
        }
    }

    #[test]
    fn package_of_a_runner_names_the_server() {
        named("server-everything", &["npx -y @scope/server-everything"]);
        named("context7-mcp", &["npx -y @upstash/context7-mcp@1.2.3 --stdio"]);
        named(
            "mcp-server-fetch",
            &["uvx --from git+https://example.com/x mcp-server-fetch"],
        );
        named(
            "mcp-server-time",
            &[
                "uvx mcp-server-time==1.0",
                "uvx mcp-server-time[tz]>=1",
                "uv tool run mcp-server-time",
            ],
        );
        named(
            "thing",
            &["pnpm dlx thing", "npx /srv/repos/thing.git", "pipx run thing"],
        );
        named(
            "playwright",
            &["npx @playwright/mcp@latest", "npx -y @playwright/mcp --headless"],
        );
    }

    #[test]
    fn script_or_its_directory_names_the_server() {
        named(
            "weather",
            &[
                "node weather.js",
                "node --import tsx weather.ts",
                "python3 -u weather.py",
                "node /srv/weather/build/index.js",
                "python3.12 /srv/weather/src/server.py",
                "uv run weather.py",
                "uv --directory /srv/x run weather",
                "uv run --with httpx weather.py",
                "deno run -A /srv/weather/mod.ts",
                "bun run weather.ts",
                "tsx ./weather/src/index.ts",
                "java -Xmx1g -jar /opt/weather.jar",
                "dotnet run --project /src/weather/weather.csproj",
                "go run ./cmd/weather",
                "ruby weather.rb",
            ],
        );
        named("server", &["node server.js", "python3 server.py"]);
        named("main", &["python3 -m __main__"]);
    }

    #[test]
    fn module_names_the_server() {
        named(
            "mcp-server-fetch",
            &["python -m mcp_server_fetch", "uv run -m mcp_server_fetch"],
        );
        named("weather", &["python3 -m weather.server", "python3 -m weather"]);
    }

    #[test]
    fn image_names_the_server() {
        named(
            "github-mcp-server",
            &[
                "docker run -i --rm -e GITHUB_TOKEN ghcr.io/github/github-mcp-server",
                "podman run -i --env-file=x ghcr.io/github/github-mcp-server:v1@sha256:00",
            ],
        );
        named(
            "fetch",
            &["docker run -i --rm --mount type=bind,src=/a,dst=/b mcp/fetch:latest --x"],
        );
        named("acme", &["docker run acme/mcp"]);
    }

    #[test]
    fn command_within_a_command_names_the_server() {
        named("weather", &["env A=1 B=2 node weather.js"]);
        let argv = ["sh", "-c", "cd /srv && exec npx -y @scope/weather"].map(str::to_owned);
        assert_eq!(of_command(&argv), "weather");
    }

    #[test]
    fn program_names_the_server_where_nothing_else_does() {
        named("my-server", &["/usr/local/bin/My-Server.sh --flag"]);
        named("npx", &["npx"]);
        named("docker", &["docker mcp gateway"]);
        named("mcp-server", &["/opt/mcp"]);
        named("server", &["///"]);
        assert_eq!(of_command(&[]), "server");
    }
}
