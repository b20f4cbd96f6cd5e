#include "server/config/config_print.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/json_value.h"
#include "server/config/config_keys.h"
#include "server/config/config_values.h"

namespace eplb {
namespace {

constexpr std::string_view kIdentity = "tls.identity";
constexpr std::string_view kJobsTable = "jobs.";

std::string_view TableOf(std::string_view key) { return key.substr(0, key.find('.')); }
std::string_view LastWordOf(std::string_view key) { return key.substr(key.rfind('.') + 1); }

// JSON's strings are basic strings of TOML.
std::string Quoted(std::string_view text) { return wire::JsonQuote(text); }

// `text` as a TOML value that the key takes: a number where that is one, else a string. None when
// the key takes neither, because it is not set.
std::optional<std::string> TomlValue(std::string_view key, const std::string& text) {
  using Kind = ConfigValue::Kind;
  DaemonConfig scratch;
  double number = 0;
  if (absl::SimpleAtod(text, &number)) {
    for (const Kind kind : {Kind::kInteger, Kind::kReal}) {
      if (SetConfigKey(key, {.kind = kind, .text = text}, &scratch).ok()) return text;
    }
  }
  if (!SetConfigKey(key, {.kind = Kind::kText, .text = text}, &scratch).ok()) return std::nullopt;
  return Quoted(text);
}

std::string SourceOf(const DaemonConfig& config, std::string_view key) {
  const auto origin = config.origins.find(std::string(key));
  return origin == config.origins.end() ? "default" : origin->second.source;
}

std::string Line(const DaemonConfig& config, const ConfigKey& key) {
  const std::optional<std::string> value = TomlValue(key.name, key.text(config));
  const std::string name(LastWordOf(key.name));
  if (!value) return absl::StrCat("# ", name, " is not set\n");
  return absl::StrCat(name, " = ", *value, "  # ", SourceOf(config, key.name), "\n");
}

const char* NameOf(AccessRole role) {
  switch (role) {
    case AccessRole::kMember:
      return "member";
    case AccessRole::kViewer:
      return "viewer";
    case AccessRole::kOperator:
    case AccessRole::kLocal:  // no rule gives it
      break;
  }
  return "operator";
}

std::string Identities(const DaemonConfig& config) {
  if (config.tls.identities.empty()) return "";
  std::string text =
      absl::StrCat("\n[", std::string(kIdentity), "]  # ", SourceOf(config, kIdentity), "\n");
  for (const IdentityRule& rule : config.tls.identities) {
    std::vector<std::string> jobs;
    for (const std::string& job : rule.jobs) jobs.push_back(Quoted(job));
    absl::StrAppend(&text, Quoted(rule.pattern), " = { role = ", Quoted(NameOf(rule.role)),
                    ", jobs = [", absl::StrJoin(jobs, ", "), "] }\n");
  }
  return text;
}

// As they were given: a job's key has the range of the daemon's own.
std::string JobSettings(const DaemonConfig& config) {
  std::map<std::string, std::string>
      tables;  // a job's name may hold dots: its keys are not neighbours
  for (const auto& [key, origin] : config.origins) {
    if (key.rfind(kJobsTable, 0) != 0) continue;
    const std::string job = key.substr(kJobsTable.size(), key.rfind('.') - kJobsTable.size());
    absl::StrAppend(&tables[job], std::string(LastWordOf(key)), " = ",
                    TomlValue(key, origin.given).value_or("\"\""), "  # ", origin.source, "\n");
  }
  std::string text;
  for (const auto& [job, lines] : tables) {
    absl::StrAppend(&text, "\n[jobs.", Quoted(job), "]\n", lines);
  }
  return text;
}

}  // namespace

std::string ConfigToml(const DaemonConfig& config) {
  std::vector<std::string_view> tables;  // in the order of their first key
  std::map<std::string_view, std::string> lines;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string_view table = TableOf(key.name);
    if (!lines.contains(table)) tables.push_back(table);
    std::string& text = lines[table];
    if (key.name != kIdentity) text += Line(config, key);
  }
  std::string text =
      "# The configuration in force, with the source of each value. eplbd --config reads it.\n";
  for (const std::string_view table : tables) {
    absl::StrAppend(&text, "\n[", std::string(table), "]\n", lines[table]);
  }
  return absl::StrCat(text, Identities(config), JobSettings(config));
}

std::string ConfigSummary(const DaemonConfig& config, const std::string& file) {
  const auto of_file =
      std::count_if(config.origins.begin(), config.origins.end(), [&file](const auto& entry) {
        return !file.empty() && entry.second.source.rfind(absl::StrCat(file, ":"), 0) == 0;
      });
  const auto others = std::ssize(config.origins) - of_file;
  const auto keys = [](int64_t count) {
    return absl::StrCat(count, count == 1 ? " key" : " keys");
  };
  if (file.empty()) return absl::StrCat("no file: ok, ", keys(others), " from variables and flags");
  std::string text = absl::StrCat(file, ": ok, ", keys(of_file));
  if (others > 0) absl::StrAppend(&text, "; ", keys(others), " from variables and flags");
  return text;
}

}  // namespace eplb
