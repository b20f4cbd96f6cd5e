#include "server/config_names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "proto/wire/names.h"

namespace eplb {
namespace {

constexpr size_t kMaxDistance = 3;      // a name further away was not meant,
constexpr size_t kLettersPerError = 3;  // nor one of which less would be right

// The number of letters to insert, delete or replace. cost: O(|a| * |b|).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

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

std::string Suggestion(std::string_view name, std::span<const std::string> known) {
  size_t least = std::min(kMaxDistance, name.size() / kLettersPerError) + 1;
  std::string_view nearest;
  for (const std::string& one : known) {
    if (name.size() > one.size() + kMaxDistance) continue;  // bounds the search, too
    const size_t distance = EditDistance(name, one);
    if (distance >= least) continue;
    least = distance;
    nearest = one;
  }
  return nearest.empty() ? "" : absl::StrCat(", did you mean ", std::string(nearest), "?");
}

absl::Status CheckJobName(std::string_view name) {
  if (wire::CheckPlainName("job", name).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("jobs.\"", OnOneLine(name), "\": expected a job's name, 1..",
                   wire::kMaxNameLength, " letters, digits, '.', '_' and '-'"));
}

}  // namespace eplb
