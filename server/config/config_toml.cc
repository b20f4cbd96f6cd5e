// Reads the configuration from TOML, and prints it as TOML.
#include "server/config/config_toml.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "base/toml_text.h"
#include "proto/wire/settings.h"
#include "server/config/config_keys.h"

#include "eplb/v1/options.pb.h"

namespace eplb {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr std::string_view kIdentity = "tls.identity";

WrittenValue ValueOf(const toml::array& array) {
  WrittenValue value = {.kind = WrittenValue::Kind::kTexts, .text = "an array"};
  for (const toml::node& one : array) {
    const auto* text = one.as_string();
    if (text == nullptr) return {.kind = WrittenValue::Kind::kOther, .text = "an array"};
    value.texts.push_back(text->get());
  }
  return value;
}

WrittenValue ValueOf(const toml::node& node) {
  using Kind = WrittenValue::Kind;
  if (const auto* integer = node.as_integer()) {
    return {.kind = Kind::kInteger, .text = absl::StrCat(integer->get())};
  }
  if (const auto* real = node.as_floating_point()) {
    return {.kind = Kind::kReal, .text = ScalarText(real->get())};
  }
  if (const auto* text = node.as_string()) return {.kind = Kind::kText, .text = text->get()};
  if (const auto* flag = node.as_boolean()) {
    return {.kind = Kind::kOther, .text = flag->get() ? "true" : "false"};
  }
  if (const auto* array = node.as_array()) return ValueOf(*array);
  return {.kind = Kind::kOther, .text = node.is_table() ? "a table" : "a date or time"};
}

// Refuses an unknown table. An empty one has no key that could be refused.
absl::Status CheckTable(std::string_view name) {
  std::set<std::string> tables = {"jobs"};
  for (const ConfigKey& key : ConfigKeys()) tables.insert(key.table);
  if (tables.contains(std::string(name))) return absl::OkStatus();
  const std::vector<std::string> known(tables.begin(), tables.end());
  return InvalidInput(Clipped(name), ": unknown table", Suggestion(name, known));
}

std::string Place(const std::string& file, const toml::node& node) {
  return absl::StrCat(file, ":", node.source().begin.line);
}

absl::Status At(const std::string& file, const toml::node& node, const absl::Status& status) {
  if (status.ok()) return status;
  return InvalidInput(Place(file, node), ": ", status.message());
}

// Names of the roles in the table tls.identity.
struct RoleName {
  AccessRole role;
  std::string_view name;
};
constexpr RoleName kRoles[] = {{AccessRole::kMember, "member"},
                               {AccessRole::kViewer, "viewer"},
                               {AccessRole::kOperator, "operator"}};

std::optional<AccessRole> RoleOf(std::string_view name) {
  for (const RoleName& each : kRoles) {
    if (each.name == name) return each.role;
  }
  return std::nullopt;
}

std::string_view NameOf(AccessRole role) {
  for (const RoleName& each : kRoles) {
    if (each.role == role) return each.name;
  }
  return "";  // kLocal, which no rule gives
}

// Returns true for a printable text with a `*` at most at its end.
bool IsPattern(std::string_view text) {
  const size_t star = text.find('*');
  return !text.empty() && (star == std::string_view::npos || star + 1 == text.size()) &&
         std::ranges::all_of(
             text, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

absl::StatusOr<std::vector<std::string>> JobsOf(const std::string& where, const toml::node* node) {
  const toml::array* array = node == nullptr ? nullptr : node->as_array();
  if (array == nullptr || array->empty() || array->size() > kMaxJobsPerRule) {
    return InvalidInput(where, "jobs: expected a list of 1..", kMaxJobsPerRule, " names");
  }
  std::vector<std::string> jobs;
  for (const toml::node& entry : *array) {
    const auto* text = entry.as_string();
    if (text == nullptr || !IsPattern(text->get())) {
      return InvalidInput(
          where, "jobs: expected names of jobs, with * at the end or nowhere, such as \"train-*\"");
    }
    jobs.push_back(text->get());
  }
  return jobs;
}

absl::StatusOr<IdentityRule> ReadRule(const std::string& where, std::string_view pattern,
                                      const toml::node& node) {
  const toml::table* table = node.as_table();
  if (!IsPattern(pattern) || table == nullptr) {
    return InvalidInput(
        where,
        "expected a URI or DNS name, with * at the end or nowhere, and { role = .., jobs = [..] }");
  }
  for (const auto& [key, value] : *table) {
    if (key.str() == "role" || key.str() == "jobs") continue;
    return InvalidInput(where, "unknown key ", Clipped(key.str()), ", expected role and jobs");
  }
  const toml::node* role_node = table->get("role");
  const auto* name = role_node == nullptr ? nullptr : role_node->as_string();
  const std::optional<AccessRole> role = name == nullptr ? std::nullopt : RoleOf(name->get());
  if (!role) return InvalidInput(where, "role: expected \"member\", \"viewer\" or \"operator\"");
  EPLB_ASSIGN_OR_RETURN(std::vector<std::string> jobs, JobsOf(where, table->get("jobs")));
  return IdentityRule{.pattern = std::string(pattern), .role = *role, .jobs = std::move(jobs)};
}

absl::StatusOr<std::vector<IdentityRule>> ReadIdentityRules(const std::string& file,
                                                            const toml::table& table) {
  if (table.size() > kMaxIdentityRules) {
    return InvalidInput(file, ": tls.identity has ", table.size(), " rules, at most ",
                        kMaxIdentityRules);
  }
  std::vector<IdentityRule> rules;
  for (const auto& [key, node] : table) {
    const std::string_view pattern = key.str();
    const std::string where =
        absl::StrCat(Place(file, node), ": tls.identity \"", Clipped(pattern), "\": ");
    EPLB_ASSIGN_OR_RETURN(rules.emplace_back(), ReadRule(where, pattern, node));
  }
  return rules;
}

// Returns true for a table in a table, such as store.etcd.
bool HoldsKeys(const std::string& name) {
  return std::ranges::any_of(ConfigKeys(), [prefix = name + "."](const ConfigKey& key) {
    return key.FullName().starts_with(prefix);
  });
}

absl::Status ApplyKey(const std::string& file, const std::string& name, const toml::node& node,
                      DaemonConfig* config);

// Applies the keys of a table.
// NOLINTNEXTLINE(misc-no-recursion): as deep as the names of keys
absl::Status ApplyTable(const std::string& file, const std::string& name, const toml::table& table,
                        DaemonConfig* config) {
  for (const auto& [key, node] : table) {
    EPLB_RETURN_IF_ERROR(
        ApplyKey(file, absl::StrCat(name, ".", std::string(key.str())), node, config));
  }
  return absl::OkStatus();
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the names of keys
absl::Status ApplyKey(const std::string& file, const std::string& name, const toml::node& node,
                      DaemonConfig* config) {
  const toml::table* const table = node.as_table();
  if (table != nullptr && HoldsKeys(name)) return ApplyTable(file, name, *table, config);
  if (table == nullptr || name != kIdentity) {
    return At(file, node, SetConfigKeyFrom(Place(file, node), name, ValueOf(node), config));
  }
  EPLB_ASSIGN_OR_RETURN(config->identities, ReadIdentityRules(file, *table));
  config->origins[name] = {.source = Place(file, node), .given = "a table"};
  return absl::OkStatus();
}

absl::Status ApplyJobs(const std::string& file, const toml::table& jobs, DaemonConfig* config) {
  for (const auto& [job, settings] : jobs) {
    const toml::table* const table = settings.as_table();
    const std::string name = absl::StrCat("jobs.", std::string(job.str()));
    if (table == nullptr) {
      EPLB_RETURN_IF_ERROR(ApplyKey(file, name, settings, config));
      continue;
    }
    EPLB_RETURN_IF_ERROR(At(file, settings, CheckJobName(job.str())));
    EPLB_RETURN_IF_ERROR(ApplyTable(file, name, *table, config));
  }
  return absl::OkStatus();
}

// JSON's strings are basic strings of TOML.
std::string Quoted(std::string_view text) { return wire::JsonQuote(text); }

// Returns a number as it is, and any other value as a TOML string.
std::string TomlValue(const Scalar& value) {
  const bool is_number =
      std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
  return is_number ? ScalarText(value) : Quoted(ScalarText(value));
}

std::string SourceOf(const DaemonConfig& config, std::string_view key) {
  const auto origin = config.origins.find(std::string(key));
  return origin == config.origins.end() ? "default" : origin->second.source;
}

std::string Line(const DaemonConfig& config, const ConfigKey& key) {
  const Scalar value = key.Get(config);
  // A path without a value.
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && !key.Read({.text = *text})) {
    return absl::StrCat("# ", key.name, " is not set\n");
  }
  return absl::StrCat(key.name, " = ",
                      key.option->kind() == "boolean" ? ScalarText(value) : TomlValue(value),
                      "  # ", SourceOf(config, key.FullName()), "\n");
}

std::string Identities(const DaemonConfig& config) {
  if (config.identities.empty()) return "";
  std::string text =
      absl::StrCat("\n[", std::string(kIdentity), "]  # ", SourceOf(config, kIdentity), "\n");
  for (const IdentityRule& rule : config.identities) {
    std::vector<std::string> jobs;
    for (const std::string& job : rule.jobs) jobs.push_back(Quoted(job));
    absl::StrAppend(&text, Quoted(rule.pattern), " = { role = ", Quoted(NameOf(rule.role)),
                    ", jobs = [", absl::StrJoin(jobs, ", "), "] }\n");
  }
  return text;
}

std::string JobSettings(const DaemonConfig& config) {
  std::string text;
  std::map<std::string, const v1::PolicySettings*> jobs;  // in the order of their names
  for (const auto& [job, settings] : config.keys.jobs()) jobs[job] = &settings;
  for (const auto& [job, settings] : jobs) {
    absl::StrAppend(&text, "\n[jobs.", Quoted(job), "]\n");
    for (const wire::SettingRow& row : wire::SettingRows()) {
      if (!settings->GetReflection()->HasField(*settings, row.field)) continue;
      absl::StrAppend(&text, row.name, " = ", TomlValue(row.Get(*settings).value()), "  # ",
                      SourceOf(config, absl::StrCat("jobs.", job, ".", row.name)), "\n");
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadConfigFile(const std::string& file) {
  absl::StatusOr<std::string> text = ReadRegularFile(file, kMaxConfigBytes);
  if (text.ok()) return text;
  return InvalidInput(text.status().message());
}

absl::Status ApplyConfigText(const std::string& file, const std::string& text,
                             DaemonConfig* config) {
  EPLB_ASSIGN_OR_RETURN(const toml::table root, wire::ParseToml(file, text));
  for (const auto& [name, node] : root) {
    const std::string table_name(name.str());
    const toml::table* const table = node.as_table();
    if (table == nullptr) {
      EPLB_RETURN_IF_ERROR(ApplyKey(file, table_name, node, config));
    } else if (table_name == "jobs") {
      EPLB_RETURN_IF_ERROR(ApplyJobs(file, *table, config));
    } else if (table->empty()) {
      EPLB_RETURN_IF_ERROR(At(file, node, CheckTable(table_name)));
    } else {
      EPLB_RETURN_IF_ERROR(ApplyTable(file, table_name, *table, config));
    }
  }
  return absl::OkStatus();
}

std::string ConfigToml(const DaemonConfig& config) {
  std::vector<std::string> tables;  // in the order of their first key
  std::map<std::string, std::string> lines;
  for (const ConfigKey& key : ConfigKeys()) {
    if (!lines.contains(key.table)) tables.push_back(key.table);
    std::string& text = lines[key.table];
    if (key.FullName() != kIdentity) text += Line(config, key);
  }
  std::string text =
      "# The current configuration, with the source of each value. eplbd --config reads it.\n";
  for (const std::string& table : tables) {
    absl::StrAppend(&text, "\n[", table, "]\n", lines[table]);
  }
  return absl::StrCat(text, Identities(config), JobSettings(config));
}

std::string ConfigSummary(const DaemonConfig& config, const std::string& file) {
  const auto of_file = std::ranges::count_if(config.origins, [&file](const auto& entry) {
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
