#include "server/config/config_help.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "server/config/config_keys.h"

#include "eplb/v1/options.pb.h"

namespace eplb {
namespace {

constexpr char kSources[] =
    R"(Settings are keys of a TOML file (--config), variables of the environment and
flags (--set KEY=VALUE, or a flag of their own); the later win.
)";

constexpr size_t kIndent = 4;

constexpr char kMore[] =
    R"(EPLB_TLS_CERT, EPLB_TLS_KEY and EPLB_TLS_CA are the daemon's own identity here
and the caller's in eplbctl and in ranks: do not export them for both.
EPLB_TLS_SERVER_NAME, EPLB_ENDPOINT, EPLB_LIBRARY and EPLB_DISABLE are for those
alone.
)";

// "a number in 0..1; default 0.05"
std::string ValueHelp(const ConfigKey& key) {
  const std::string& words = key.option->default_help();
  const std::string value = words.empty() ? ScalarText(key.Get(DaemonConfig())) : words;
  return absl::StrCat(key.Expected(), "; default ", value.empty() ? "none" : value);
}

// Words in lines of at most 80 columns, each after `indent` spaces.
std::string Wrapped(const std::string& text, size_t indent) {
  constexpr size_t kColumns = 80;
  std::string result;
  size_t column = kColumns;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (const std::string& word : words) {
    const bool fits = column + 1 + word.size() <= kColumns;
    if (!fits && !result.empty()) result += '\n';
    if (!fits) {
      result.append(indent, ' ');
      column = indent;
    } else {
      result += ' ';
      ++column;
    }
    result.append(word);
    column += word.size();
  }
  return result + '\n';
}

// "The keys name, mode, .. may be set for one job: jobs.NAME.KEY."
std::string JobKeysHelp() {
  std::vector<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.of_jobs()) names.push_back(key.name);
  }
  return absl::StrCat("The keys ", absl::StrJoin(names, ", "),
                      " may be set for one job: jobs.NAME.KEY.");
}

// A line of text as roff takes it: '-' as typed, no leading '.' or '\''.
std::string Roff(const std::string& text) {
  std::string result = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (absl::StartsWith(result, ".") || absl::StartsWith(result, "'")) result.insert(0, "\\&");
  return result;
}

std::string Entry(const std::string& head, const std::string& text) {
  return absl::StrCat(".TP\n.B ", Roff(head), "\n", Roff(text), "\n");
}

}  // namespace

std::string ConfigHelp() {
  std::string text = absl::StrCat(kSources, "\n");
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = key.FullName();
    absl::StrAppend(&text, name, "  ", VariableOf(name), "\n",
                    Wrapped(std::string(key.help), kIndent), Wrapped(ValueHelp(key), kIndent));
  }
  return absl::StrCat(text, "\n", Wrapped(JobKeysHelp(), 0), kMore);
}

std::string ManualPage(const std::string& version,
                       const std::vector<std::pair<std::string, std::string>>& flags) {
  std::string text =
      absl::StrCat(".TH EPLBD 8 \"\" \"", version, "\" \"Expert-parallel load balancer\"\n",
                   ".SH NAME\neplbd \\- decides where the experts of training jobs run\n",
                   ".SH SYNOPSIS\n.B eplbd\n.RI [ FLAG ...]\n.SH DESCRIPTION\n",
                   "Serves ranks and eplbctl(1) by gRPC and answers /metrics, /livez, /readyz and "
                   "/api/v1 by HTTP. The first line on stdout is {\"event\":\"listening\",..}; the "
                   "log goes to stderr. SIGTERM drains.\n",
                   ".SH OPTIONS\n");
  for (const auto& [flag, help] : flags) text += Entry(flag, help);
  absl::StrAppend(&text, ".SH CONFIGURATION\n", Roff(kSources));
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string name = key.FullName();
    text += Entry(absl::StrCat(name, " ", VariableOf(name)), std::string(key.help));
    absl::StrAppend(&text, ".br\n", Roff(ValueHelp(key)), "\n");
  }
  return absl::StrCat(text, ".PP\n", Roff(JobKeysHelp()), "\n", Roff(kMore),
                      ".SH EXIT STATUS\n0 after a drain, 1 when it cannot serve, 2 usage or "
                      "unusable configuration.\n");
}

}  // namespace eplb
