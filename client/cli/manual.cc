#include "client/cli/manual.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/foreign_text.h"
#include "client/cli/text.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

// Words that are meant as they stand: lower case, none with a placeholder in it.
std::vector<std::string> ChoicesOf(const std::string& type) {
  const bool literal = type.find('|') != std::string::npos &&
                       std::none_of(type.begin(), type.end(), [](unsigned char c) {
                         return absl::ascii_isupper(c) || c == ':';
                       });
  return literal ? absl::StrSplit(type, '|') : std::vector<std::string>();
}

FlagEntry EntryOf(const CLI::Option& option) {
  FlagEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  if (option.get_expected_max() > 0) entry.type = option.get_type_name();
  if (entry.names.empty()) entry.place = std::exchange(entry.type, "");
  entry.choices = ChoicesOf(entry.place.empty() ? entry.type : entry.place);
  entry.help = option.get_description();
  entry.required = option.get_required();
  return entry;
}

void Append(const CLI::App& app, const std::string& name, std::vector<CommandEntry>& entries) {
  CommandEntry entry{.name = name, .help = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) entry.flags.push_back(EntryOf(*option));
  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : all) entry.subcommands.push_back(command->get_name());
  entries.push_back(std::move(entry));
  for (const CLI::App* command : all) {
    Append(*command, name.empty() ? command->get_name() : name + " " + command->get_name(),
           entries);
  }
}

}  // namespace

std::vector<CommandEntry> ListCommands(const CLI::App& root) {
  std::vector<CommandEntry> entries;
  Append(root, "", entries);
  return entries;
}

namespace {

// The same words and numbers as docs/costs.md.
constexpr char kCosts[] =
    R"(How costs decide whether a new placement is applied

With cost.token_ns (eplbd) or --expert-bytes (eplbctl replay) a decision counts
seconds. Without them policy auto of eplbd measures its prices, and other
policies go by min_gain alone. The rule is the same for every policy.

  peak GPU load    per layer the tokens of its fullest GPU; summed over layers
  migration        bytes of the busiest link / its bandwidth + cost.stall
  replicas         training only: weights and gradients that replicas on other
                   GPUs send each step, beyond those of the placement in force
  back-test        the policy decides on the job's own windows as if its
                   placements ran; later windows show what they are worth
  predicted gain   fall of the peak GPU load on the windows decided on
  share            part of earlier predicted gains that later windows showed;
                   one half before the first comparison
  horizon          steps that a gain counts over: four decisions, at most
                   horizon_steps
  missed           what the back-test's placements have certainly saved since the
                   current placement took effect
  loss budget      0.3 % of the time without any move + saved - spent so far

A new placement is applied when all of this holds:
  1. the peak GPU load of these steps would fall by at least min_gain;
  2. the back-test has a candidate that beats doing nothing;
  3. share * predicted gain * horizon - replicas is more than the migration (four
     migrations before the first comparison), or the missed seconds are.
A migration above the loss budget goes by figures with more of their scatter
taken off. If nothing is proved and the starting placement is certainly ahead,
the job returns to it.

Example. 1.51 ms a step are predicted, the share is 62 %, the horizon 200 steps,
the migration takes 20 ms. There are no replicas.
  3. 0.62 * 1.51 ms * 200 = 190 ms > 20 ms: it is applied.

More: docs/costs.md.
)";

struct Topic {
  const char* name;
  const char* about;
  const char* page;
};
constexpr Topic kTopics[] = {
    {"costs", "how costs decide whether a new placement is applied", kCosts}};

constexpr size_t kMaxTopic = 80;

std::string TopicList() {
  std::string list;
  for (const Topic& topic : kTopics) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", topic.name, " (", topic.about, ")");
  }
  return list;
}

}  // namespace

namespace {

// Null if there is none of that name.
const CLI::App* Subcommand(const CLI::App& app, const std::string& name) {
  const auto named =
      app.get_subcommands([&name](const CLI::App* one) { return one->check_name(name); });
  return named.empty() ? nullptr : named.front();
}

}  // namespace

Output RunHelp(const CLI::App& root, const std::vector<std::string>& words) {
  Output output;
  if (words.size() == 1) {
    for (const Topic& one : kTopics) {
      if (words.front() == one.name) return {.exit_code = kOk, .out = one.page, .message = {}};
    }
  }
  const CLI::App* command = &root;
  std::string before;  // the words in front of the command's own
  for (const std::string& word : words) {
    absl::StrAppend(&before, before.empty() ? "" : " ", command->get_name());
    command = Subcommand(*command, word);
    if (command == nullptr) {
      return Failure(kUsage, absl::InvalidArgumentError(absl::StrCat(
                                 "no page on \"", Clipped(absl::StrJoin(words, " "), kMaxTopic),
                                 "\", expected a command or one of: ", TopicList())));
    }
  }
  output.out = command->get_formatter()->make_help(
      command, absl::StrCat(before, before.empty() ? "" : " ", command->get_name()),
      CLI::AppFormatMode::Normal);
  if (!absl::EndsWith(output.out, "\n")) output.out += '\n';
  return output;
}

void AddHelp(CLI::App& root, Command& command) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App& app = *root.add_subcommand(
      "help", "Show the flags of a command, or explain words of the output: " + TopicList());
  app.add_option("topic", *words, "A command or a topic [this program]")->type_name("TOPIC");
  app.footer(
      "Examples:\n"
      "  eplbctl help get placement\n"
      "  eplbctl help costs\n"
      "Exit codes: 0 ok, 2 no such page.");
  app.callback([words, &root, &command] {
    command = [words, &root](const Terminal& /*terminal*/) { return RunHelp(root, *words); };
  });
}

namespace {

// Silent where no daemon answers at once.
constexpr char kAskJobs[] = "eplbctl 2> /dev/null get jobs --names --timeout 500ms";

// Where a path is expected: the shell's own completion of files.
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
  return std::find(flag.names.begin(), flag.names.end(), "--job") != flag.names.end();
}

// What follows a flag: its choices, jobs, files, or anything.
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

// True when exactly this command's words stand on the line.
std::string FishCondition(const CommandEntry& command) {
  if (command.name.empty()) return "__fish_use_subcommand";
  const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
  std::vector<std::string> conditions;
  conditions.reserve(words.size() + 1);
  for (const std::string& word : words) {
    conditions.push_back("__fish_seen_subcommand_from " + word);
  }
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
      // The daemon on the line is asked, for a moment; what it does not answer is not offered.
      "_eplbctl_jobs() {\n"
      "  local line=${COMP_LINE:-} endpoint=\"\"\n"
      "  case $line in *--endpoint[=\\ ]?*) endpoint=${line#*--endpoint?}; endpoint=${endpoint%% "
      "*} ;; "
      "esac\n"
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

}  // namespace

std::string BashCompletion(const std::vector<CommandEntry>& commands) {
  return "# bash completion of eplbctl. Load it with: source <(eplbctl completion bash)\n" +
         Functions(commands);
}

std::string ZshCompletion(const std::vector<CommandEntry>& commands) {
  // As a file named _eplbctl on zsh's fpath this is read at the first completion, which it must
  // answer.
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

void AddCompletion(CLI::App& root, Command& command) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& app = *root.add_subcommand("completion", "Print a shell's completion script");
  app.add_option("shell", *shell, "Whose script")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""))
      ->type_name("bash|zsh|fish");
  app.footer(
      "Examples:\n"
      "  source <(eplbctl completion bash)\n"
      "  eplbctl completion fish | source\n"
      "Exit codes: 0 ok, 1 error, 2 wrong flag.");
  app.callback([shell, &root, &command] {
    command = [shell, &root](const Terminal& /*terminal*/) {
      const std::vector<CommandEntry> commands = ListCommands(root);
      Output output;
      output.out = *shell == "bash"  ? BashCompletion(commands)
                   : *shell == "zsh" ? ZshCompletion(commands)
                                     : FishCompletion(commands);
      return output;
    };
  });
}

namespace {

// A line of text as roff takes it: '-' as typed, no leading '.' or '\''.
std::string Roff(const std::string& text) {
  std::string result = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (absl::StartsWith(result, ".") || absl::StartsWith(result, "'")) result.insert(0, "\\&");
  return result;
}

std::string FlagText(const FlagEntry& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back("\\fB" + Roff(name) + "\\fR");
  std::string text = absl::StrJoin(names, ", ");
  const std::string& value = flag.place.empty() ? flag.type : flag.place;
  if (!value.empty()) absl::StrAppend(&text, text.empty() ? "" : " ", "\\fI", Roff(value), "\\fR");
  return absl::StrCat(".TP\n", text, flag.required ? " (required)" : "", "\n", Roff(flag.help),
                      "\n");
}

// Examples and exit codes keep their lines.
std::string FooterText(const std::string& footer) {
  if (footer.empty()) return "";
  std::string text = ".PP\n.nf\n";
  for (const absl::string_view line : absl::StrSplit(footer, '\n')) {
    absl::StrAppend(&text, Roff(std::string(line)), "\n");
  }
  return text + ".fi\n";
}

std::string CommandText(const CommandEntry& command) {
  std::string text =
      absl::StrCat(".SS \"eplbctl ", command.name, "\"\n", Roff(command.help), ".\n");
  for (const FlagEntry& flag : command.flags) {
    const bool help = !flag.names.empty() && flag.names.back() == "--help";
    if (!help) text += FlagText(flag);
  }
  return text + FooterText(command.footer);
}

constexpr char kTail[] = R"(.SH EXIT STATUS
0 ok, 1 error, 2 usage or unusable input, 3 unreachable, 4 denied, 5 not found, 6 conflict,
7 timeout, 8 condition not met (lint, report, diff, doctor, wait, rebalance \-\-wait).
.SH ENVIRONMENT
.TP
.B EPLB_ENDPOINT
The daemon, as HOST:PORT or unix:PATH, or several with commas between them, when there is no \-\-endpoint.
.TP
.BR EPLB_TLS_CA ", " EPLB_TLS_CERT ", " EPLB_TLS_KEY ", " EPLB_TLS_SERVER_NAME
Each when its flag is not given: \-\-tls\-ca, \-\-tls\-cert, \-\-tls\-key, \-\-tls\-server\-name.
.TP
.BR XDG_CONFIG_HOME ", " HOME ", " XDG_RUNTIME_DIR
Where the configuration file and a socket are looked for, see FILES.
.TP
.BR NO_COLOR ", " TERM ", " COLUMNS
Colour is shown on a terminal only, and not with NO_COLOR or TERM=dumb; COLUMNS overrides its width.
.TP
.BR LC_ALL ", " LC_CTYPE ", " LANG
Bars are drawn with block characters when the first of them that is set names UTF\-8.
.SH FILES
.TP
.IR $XDG_CONFIG_HOME/eplb/eplbctl.toml ", " ~/.config/eplb/eplbctl.toml
endpoint = "HOST:PORT", when neither the flag nor EPLB_ENDPOINT is given; and a table [tls] with ca,
cert, key and server_name, for that endpoint, or for every one when the file has no endpoint. The
second is read only where XDG_CONFIG_HOME is not set.
.TP
.IR /run/eplb/eplbd.sock ", " $XDG_RUNTIME_DIR/eplb/eplbd.sock
Asked next; the last resort is 127.0.0.1:29610.
)";

}  // namespace

std::string ManualPage(const std::vector<CommandEntry>& commands, const std::string& version) {
  std::string text = absl::StrCat(
      ".TH EPLBCTL 1 \"\" \"eplb ", version, "\" \"Expert-parallel load balancer\"\n",
      ".SH NAME\neplbctl \\- plans, checks and watches the placement of experts on GPUs\n",
      ".SH SYNOPSIS\n.B eplbctl\n.I COMMAND\n.RI [ FLAG ...]\n.SH DESCRIPTION\n",
      "Commands with a \\fB\\-\\-endpoint\\fR ask a running eplbd; the others work offline on "
      "files. ",
      "Data is on stdout, messages on stderr; \\fB\\-o json\\fR is the stable form for "
      "scripts.\n",
      ".SH COMMANDS\n");
  for (const CommandEntry& command : commands) {
    // A command that only holds others, as `get`, has nothing to say.
    if (!command.name.empty() && command.subcommands.empty()) text += CommandText(command);
  }
  return text + kTail;
}

void AddMan(CLI::App& root, Command& command) {
  CLI::App& app = *root.add_subcommand("man", "Print the manual page: eplbctl man | man -l -");
  app.footer("Exit codes: 0 ok, 1 error, 2 wrong flag.");
  app.callback([&root, &command] {
    command = [&root](const Terminal& /*terminal*/) {
      Output output;
      output.out = ManualPage(ListCommands(root), EPLB_VERSION);
      return output;
    };
  });
}

}  // namespace eplb::cli
