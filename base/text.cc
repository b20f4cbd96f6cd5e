#include "base/text.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"

namespace eplb {

std::string ErrnoText(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof(buffer));
}

std::string CountText(int64_t count, const char* one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

std::string ListLayers(const std::vector<int32_t>& layers, size_t most, int32_t of_all) {
  const size_t count = layers.size();
  if (count > 1 && static_cast<int32_t>(count) == of_all)
    return absl::StrCat("all ", of_all, " layers");
  std::vector<std::string> ranges;
  size_t named = 0;
  while (named < count && ranges.size() < most) {
    size_t end = named + 1;
    while (end < count && layers[end] == layers[end - 1] + 1) ++end;
    if (end - named < 3) end = named + 1;
    ranges.push_back(absl::StrCat(layers[named]));
    if (end - named > 1) absl::StrAppend(&ranges.back(), "..", layers[end - 1]);
    named = end;
  }
  return absl::StrCat(count == 1 ? "layer " : "layers ", absl::StrJoin(ranges, ", "),
                      named < count ? absl::StrCat(" and ", count - named, " more") : "");
}

namespace {

// With `digits` significant digits below 10 s.
std::string SecondsTextOf(double seconds, int digits) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 1e-4) return absl::StrFormat("%.*g us", digits, 1e6 * seconds);
  if (size < 0.0995) return absl::StrFormat("%.*g ms", digits, 1e3 * seconds);
  if (size < 9.95) return absl::StrFormat("%.*g s", digits, seconds);
  if (size < 1e6) return absl::StrFormat("%.*f s", digits - 2, seconds);
  return absl::StrFormat("%.*g s", digits + 1, seconds);
}

}  // namespace

std::string SecondsText(double seconds) { return SecondsTextOf(seconds, 2); }

ComparedText CompareSeconds(double of, double than) {
  constexpr int kFewest = 2;
  constexpr int kMost = 6;
  ComparedText text;
  for (int digits = kFewest; digits <= kMost; ++digits) {
    text = {.of = SecondsTextOf(of, digits), .than = SecondsTextOf(than, digits)};
    if (of == than || text.of != text.than) break;
  }
  return text;
}

std::string BytesText(int64_t bytes) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e18, "EB"}, {1e15, "PB"}, {1e12, "TB"},
                                                       {1e9, "GB"},  {1e6, "MB"},  {1e3, "kB"}};
  for (const auto& [size, name] : kUnits) {
    const double scaled = static_cast<double>(bytes) / size;
    if (scaled >= 1) return absl::StrFormat("%.1f %s", scaled, name);
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace eplb
