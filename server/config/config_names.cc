#include "server/config/config_names.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "proto/wire/messages.h"

namespace eplb {

std::string OnOneLine(std::string_view text) {
  constexpr size_t kMost = 256;
  const std::string escaped = absl::Utf8SafeCEscape(std::string(text.substr(0, kMost)));
  return text.size() > kMost ? absl::StrCat(escaped, "..") : escaped;
}

std::string VariableOf(std::string_view key) {
  std::string name = absl::StrCat("EPLB_", absl::AsciiStrToUpper(std::string(key)));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

absl::Status CheckJobName(std::string_view name) {
  if (wire::CheckPlainName("job", name).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("jobs.\"", OnOneLine(name), "\": expected a job's name, 1..",
                   wire::kMaxNameLength, " letters, digits, '.', '_' and '-'"));
}

}  // namespace eplb
