// `eplbctl completion`: scripts by which a shell completes commands, flags and their choices.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "client/cli/commands.h"

namespace eplb::cli {
namespace {

// Prints nothing unless a daemon answers at once.
constexpr char kAskJobs[] = "eplbctl 2> /dev/null get jobs --names --timeout 500ms";

// True if a path is expected, which the shell's own completion of files answers.
bool TakesPath(const FlagEntry& flag) {
  const std::string& type = flag.place.empty() ? flag.type : flag.place;
  for (const char* word : {"FILE", "DIR", "IN", "OUT", "FROM", "TO"}) {
    if (type == word) return true;
  }
  return false;
}

// In a case pattern of bash: " get placement --out".
std::string Pattern(const CommandEntry& command, const std::string& word) {
  return absl::StrCat("\"", command.name.empty() ? "" : " ", command.name, word.empty() ? "" : " ",
                      word, "\"");
}

std::string BashWords(const CommandEntry& command) {
  std::vector<std::string> words = command.subcommands;
  for (const FlagEntry& flag : command.flags) {
    words.insert(words.end(), flag.names.begin(), flag.names.end());
    if (flag.names.empty()) words.insert(words.end(), flag.choices.begin(), flag.choices.end());
  }
  return absl::StrJoin(words, " ");
}

bool TakesJob(const FlagEntry& flag) {
  return std::ranges::find(flag.names, "--job") != flag.names.end();
}

// The reply after a flag: its choices, jobs, files, or nothing.
std::string BashReply(const FlagEntry& flag) {
  if (!flag.choices.empty()) {
    return absl::StrCat("COMPREPLY=($(compgen -W \"", absl::StrJoin(flag.choices, " "),
                        "\" -- \"$current\")); ");
  }
  if (TakesJob(flag)) return "_eplbctl_jobs; ";
  return TakesPath(flag) ? "_eplbctl_files; " : "";
}

std::string BashValues(const CommandEntry& command) {
  std::string text;
  for (const FlagEntry& flag : command.flags) {
    if (flag.type.empty()) continue;
    const std::string reply = BashReply(flag);
    for (const std::string& name : flag.names) {
      absl::StrAppend(&text, "    ", Pattern(command, name), ") ", reply, "return ;;\n");
    }
  }
  return text;
}

bool HasPathByPlace(const CommandEntry& command) {
  for (const FlagEntry& flag : command.flags) {
    if (flag.names.empty() && TakesPath(flag)) return true;
  }
  return false;
}

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// A condition that is true if the line has exactly this command's words.
std::string FishCondition(const CommandEntry& command) {
  if (command.name.empty()) return "__fish_use_subcommand";
  const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
  std::vector<std::string> conditions;
  conditions.reserve(words.size() + 1);
  for (const std::string& word : words) conditions.push_back("__fish_seen_subcommand_from " + word);
  if (!command.subcommands.empty()) {
    conditions.push_back("not __fish_seen_subcommand_from " +
                         absl::StrJoin(command.subcommands, " "));
  }
  return absl::StrJoin(conditions, "; and ");
}

std::string FishFlag(const CommandEntry& command, const FlagEntry& flag) {
  std::string line = absl::StrCat("complete -c eplbctl -n ", FishQuoted(FishCondition(command)));
  for (const std::string& name : flag.names) {
    absl::StrAppend(
        &line, absl::StartsWith(name, "--") ? " -l " + name.substr(2) : " -s " + name.substr(1));
  }
  if (!flag.choices.empty()) {
    absl::StrAppend(&line, flag.names.empty() ? " -f -a " : " -x -a ",
                    FishQuoted(absl::StrJoin(flag.choices, " ")));
  } else if (TakesJob(flag)) {
    absl::StrAppend(&line, " -x -a ", FishQuoted("(" + std::string(kAskJobs) + ")"));
  } else if (!flag.type.empty()) {
    absl::StrAppend(&line, TakesPath(flag) ? " -r -F" : " -x");
  }
  return absl::StrCat(line, " -d ", FishQuoted(flag.help), "\n");
}

// In the part of bash's language that zsh shares.
std::string Functions(const std::vector<CommandEntry>& commands) {
  std::string known;
  std::string values;
  std::string words;
  std::string paths;
  for (const CommandEntry& command : commands) {
    const std::string pattern = Pattern(command, "");
    if (!command.name.empty()) absl::StrAppend(&known, known.empty() ? "" : "|", pattern);
    values += BashValues(command);
    absl::StrAppend(&words, "    ", pattern, ") words=\"", BashWords(command), "\" ;;\n");
    if (HasPathByPlace(command)) absl::StrAppend(&paths, paths.empty() ? "" : "|", pattern);
  }
  return absl::StrCat(
      "_eplbctl_files() {\n"
      "  local IFS=$'\\n'\n"
      "  COMPREPLY+=($(compgen -f -- \"$current\"))\n"
      "}\n"
      // Asks the daemon that the line names, with a short deadline.
      "_eplbctl_jobs() {\n"
      "  local line=${COMP_LINE:-} endpoint=\"\"\n"
      "  case $line in *--endpoint[=\\ ]?*) endpoint=${line#*--endpoint?}; endpoint=${endpoint%% "
      "*} ;; esac\n"
      "  COMPREPLY=($(compgen -W \"$(",
      kAskJobs,
      " ${endpoint:+--endpoint \"$endpoint\"})\" -- \"$current\"))\n"
      "}\n"
      "_eplbctl() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local path=\"\" words=\"\" i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n"
      "      ",
      known,
      ") path=\"$path ${COMP_WORDS[i]}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$path $previous\" in\n",
      values,
      "  esac\n"
      "  case \"$path\" in\n",
      words,
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  case \"$path\" in\n    ",
      paths,
      ") [[ $current == -* ]] || _eplbctl_files ;;\n"
      "  esac\n"
      "}\n"
      "complete -o filenames -F _eplbctl eplbctl\n");
}

std::string BashCompletion(const std::vector<CommandEntry>& commands) {
  return "# bash completion of eplbctl. Load it with: source <(eplbctl completion bash)\n" +
         Functions(commands);
}

std::string ZshCompletion(const std::vector<CommandEntry>& commands) {
  // If this is a file named _eplbctl on zsh's fpath, zsh reads it at the first completion and
  // expects an answer.
  return absl::StrCat(
      "#compdef eplbctl\n"
      "# zsh completion of eplbctl. Load it with: source <(eplbctl completion zsh)\n"
      "(( $+functions[compdef] )) || { autoload -U +X compinit && compinit }\n"
      "autoload -U +X bashcompinit && bashcompinit\n",
      Functions(commands),
      "[[ ${funcstack[1]:-} != _eplbctl ]] || _bash_complete -o filenames -F _eplbctl\n");
}

std::string FishCompletion(const std::vector<CommandEntry>& commands) {
  std::string text =
      "# fish completion of eplbctl. Load it with: eplbctl completion fish | source\n"
      "complete -c eplbctl -f\n";
  for (const CommandEntry& command : commands) {
    for (const std::string& word : command.subcommands) {
      const std::string full = command.name.empty() ? word : command.name + " " + word;
      for (const CommandEntry& other : commands) {
        if (other.name != full) continue;
        absl::StrAppend(&text, "complete -c eplbctl -n ", FishQuoted(FishCondition(command)),
                        " -f -a ", word, " -d ", FishQuoted(other.help), "\n");
      }
    }
    for (const FlagEntry& flag : command.flags) text += FishFlag(command, flag);
  }
  return text;
}

}  // namespace

void AddCompletion(const Flags& root, const CommandTree& tree) {
  const auto shell = std::make_shared<std::string>();
  Flags flags = root.AddCommand("completion", "Print a shell's completion script",
                                [shell, &tree](const Terminal& /*terminal*/) -> Output {
                                  const std::vector<CommandEntry> commands = tree.List();
                                  return *shell == "bash"  ? BashCompletion(commands)
                                         : *shell == "zsh" ? ZshCompletion(commands)
                                                           : FishCompletion(commands);
                                });
  flags.Word("shell", {"bash", "zsh", "fish"}, *shell, "Shell to print the script for").Required();
  flags.SetFooter(
      "Examples:\n"
      "  source <(eplbctl completion bash)\n"
      "  eplbctl completion fish | source\n"
      "Exit codes: 0 ok, 1 error, 2 wrong flag.");
}

}  // namespace eplb::cli
