#include "base/suggestion.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

constexpr size_t kMaxDistance = 3;      // a name further away was not meant,
constexpr size_t kLettersPerError = 3;  // nor one of which less would be right

// The number of letters to insert, delete or replace, or of neighbours to swap.
// cost: O(|a| * |b|).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);  // the row before the last one
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

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

}  // namespace eplb
