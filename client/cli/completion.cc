// `eplbctl completion`: scripts by which a shell completes a line. They ask the program what may
// come next.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "client/cli/commands.h"

namespace eplb::cli {
namespace {

// Stands for paths, which the shell completes itself.
constexpr char kFiles[] = "FILES\n";

struct CompletionOptions {
  std::string shell;
  std::string line;  // start of a command line; empty: the script is asked for
};

constexpr char kBash[] = R"(_eplbctl() {
  local current=${COMP_WORDS[COMP_CWORD]} offers
  offers=$(eplbctl completion bash "${COMP_LINE:0:$COMP_POINT}" 2> /dev/null)
  if [[ $offers == FILES ]]; then
    local IFS=$'\n'
    COMPREPLY=($(compgen -f -- "$current"))
  else
    COMPREPLY=($(compgen -W "$offers" -- "$current"))
  fi
}
complete -o filenames -F _eplbctl eplbctl
)";

constexpr char kFish[] = R"(function __eplbctl_offers
    set -l offers (eplbctl completion fish (commandline -cp) 2> /dev/null)
    if test "$offers" = FILES
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $offers
    end
end
complete -c eplbctl -f -a '(__eplbctl_offers)'
)";

std::string Script(const std::string& shell) {
  const std::string heading =
      absl::StrCat("# ", shell, " completion of eplbctl. Load it with: ",
                   shell == "fish" ? "eplbctl completion fish | source"
                                   : absl::StrCat("source <(eplbctl completion ", shell, ")"),
                   "\n");
  if (shell == "fish") return heading + kFish;
  if (shell == "bash") return heading + kBash;
  // If this is a file named _eplbctl on zsh's fpath, zsh reads it at the first completion and
  // expects an answer.
  return absl::StrCat(
      "#compdef eplbctl\n", heading,
      "(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }\n"
      "autoload -U +X bashcompinit && bashcompinit\n",
      kBash, "[[ ${funcstack[1]:-} != _eplbctl ]] || _bash_complete -o filenames -F _eplbctl\n");
}

bool IsPath(const std::string& type) {
  constexpr const char* kPaths[] = {"FILE", "DIR", "IN", "OUT", "FROM", "TO"};
  return std::ranges::find(kPaths, type) != std::end(kPaths);
}

// The names of jobs; empty unless the daemon that the line names answers at once.
std::string Jobs(const std::vector<std::string>& words, const Terminal& terminal) {
  GetOptions jobs{.query = {.timeout = "500ms"}, .names = true};
  const auto value = [&words](const char* flag) {
    const auto at = std::ranges::find(words, flag);
    return words.end() - at > 1 ? *std::next(at) : std::string();
  };
  jobs.query.endpoint = value("--endpoint");
  jobs.query.context = value("--context");
  return RunGetJobs(jobs, terminal).out;
}

// Returns what may follow the line, one word per line; fish shows the help behind a tab.
std::string Offers(const CommandTree& tree, const CompletionOptions& options,
                   const Terminal& terminal) {
  std::vector<std::string> words = absl::StrSplit(options.line, absl::ByAnyChar(" ="));
  const std::string current = words.back();
  words.pop_back();
  std::erase(words, "");
  if (!words.empty()) words.erase(words.begin());  // the program
  if (!words.empty() && words.back() == "--job") return Jobs(words, terminal);
  const CommandTree::Next next = tree.After(words);
  if (IsPath(next.type) && !current.starts_with('-')) return kFiles;
  std::string text = next.takes_job && !current.starts_with('-') ? Jobs(words, terminal) : "";
  for (const auto& [word, help] : next.words) {
    absl::StrAppend(&text, word, options.shell == "fish" ? "\t" + help : "", "\n");
  }
  return text;
}

}  // namespace

void AddCompletion(const Flags& root, const CommandTree& tree) {
  const auto options = std::make_shared<CompletionOptions>();
  Flags flags = root.AddCommand("completion", "Print a shell's completion script",
                                [options, &tree](const Terminal& terminal) -> Output {
                                  return options->line.empty() ? Script(options->shell)
                                                               : Offers(tree, *options, terminal);
                                });
  flags.Word("shell", {"bash", "zsh", "fish"}, options->shell, "Shell to print the script for")
      .Required();
  flags.Text("line", "LINE", options->line,
             "Print instead what may follow this start of a command line");
  flags.SetFooter(
      "Examples:\n"
      "  source <(eplbctl completion bash)\n"
      "  eplbctl completion fish | source\n"
      "Exit codes: 0 ok, 1 error, 2 wrong flag.");
}

}  // namespace eplb::cli
