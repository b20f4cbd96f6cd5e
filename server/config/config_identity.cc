#include "server/config/config_identity.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

std::optional<AccessRole> RoleOf(std::string_view name) {
  if (name == "member") return AccessRole::kMember;
  if (name == "viewer") return AccessRole::kViewer;
  if (name == "operator") return AccessRole::kOperator;
  return std::nullopt;
}

// Printable, and a `*` only at the end.
bool IsPattern(std::string_view text) {
  const size_t star = text.find('*');
  return !text.empty() && (star == std::string_view::npos || star + 1 == text.size()) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

std::string Where(const std::string& file, const toml::node& node, std::string_view pattern) {
  return absl::StrCat(file, ":", node.source().begin.line, ": tls.identity \"",
                      absl::Utf8SafeCEscape(std::string(pattern)), "\": ");
}

absl::StatusOr<std::vector<std::string>> JobsOf(const std::string& where, const toml::node* node) {
  const toml::array* array = node == nullptr ? nullptr : node->as_array();
  if (array == nullptr || array->empty() || array->size() > kMaxJobsPerRule) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "jobs: expected a list of 1..", kMaxJobsPerRule, " names"));
  }
  std::vector<std::string> jobs;
  for (const toml::node& entry : *array) {
    const auto* text = entry.as_string();
    if (text == nullptr || !IsPattern(text->get())) {
      return absl::InvalidArgumentError(absl::StrCat(
          where,
          "jobs: expected names of jobs, with * at the end or nowhere, such as \"train-*\""));
    }
    jobs.push_back(text->get());
  }
  return jobs;
}

absl::StatusOr<IdentityRule> ReadRule(const std::string& where, std::string_view pattern,
                                      const toml::node& node) {
  const toml::table* table = node.as_table();
  if (!IsPattern(pattern) || table == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        where,
        "expected a URI or DNS name, with * at the end or nowhere, and { role = .., jobs = "
        "[..] }"));
  }
  for (const auto& [key, value] : *table) {
    if (key.str() == "role" || key.str() == "jobs") continue;
    return absl::InvalidArgumentError(absl::StrCat(where, "unknown key ",
                                                   absl::Utf8SafeCEscape(std::string(key.str())),
                                                   ", expected role and jobs"));
  }
  const toml::node* role_node = table->get("role");
  const auto* name = role_node == nullptr ? nullptr : role_node->as_string();
  const std::optional<AccessRole> role = name == nullptr ? std::nullopt : RoleOf(name->get());
  if (!role) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "role: expected \"member\", \"viewer\" or \"operator\""));
  }
  EPLB_ASSIGN_OR_RETURN(std::vector<std::string> jobs, JobsOf(where, table->get("jobs")));
  return IdentityRule{.pattern = std::string(pattern), .role = *role, .jobs = std::move(jobs)};
}

}  // namespace

absl::StatusOr<std::vector<IdentityRule>> ReadIdentityRules(const std::string& file,
                                                            const toml::table& table) {
  if (table.size() > kMaxIdentityRules) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tls.identity has ", table.size(),
                                                   " rules, at most ", kMaxIdentityRules));
  }
  std::vector<IdentityRule> rules;
  for (const auto& [key, node] : table) {
    const std::string_view pattern = key.str();
    EPLB_ASSIGN_OR_RETURN(IdentityRule rule, ReadRule(Where(file, node, pattern), pattern, node));
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace eplb
