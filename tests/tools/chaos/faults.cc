#include "tests/tools/chaos/faults.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace eplb::chaos {
namespace {

bool SetSwitch(const std::string& word, bool* out) {
  *out = word == "on";
  return word == "on" || word == "off";
}

bool SetDuration(const std::string& word, absl::Duration* out) {
  return absl::ParseDuration(word, out) && *out >= absl::ZeroDuration();
}

}  // namespace

absl::Status ApplyLine(const std::string& line, Faults* faults) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  const std::string verb = words.empty() ? "" : words[0];
  const std::string value = words.size() == 2 ? words[1] : "";
  if (words.size() == 1 && verb == "cut") {
    ++faults->cuts;
    return absl::OkStatus();
  }
  if (words.size() == 1 && verb == "clear") {
    *faults = {.cuts = faults->cuts};
    return absl::OkStatus();
  }
  Faults next = *faults;
  const bool good = (verb == "delay" && SetDuration(value, &next.delay)) ||
                    (verb == "jitter" && SetDuration(value, &next.jitter)) ||
                    (verb == "drop" && SetSwitch(value, &next.drop)) ||
                    (verb == "stall" && SetSwitch(value, &next.stall)) ||
                    (verb == "corrupt" && absl::SimpleAtod(value, &next.corrupt) &&
                     next.corrupt >= 0 && next.corrupt <= 1) ||
                    (verb == "rate" && absl::SimpleAtoi(value, &next.bytes_per_second) &&
                     next.bytes_per_second >= 0);
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", line,
                     "\": expected delay TIME, jitter TIME, drop on|off, stall on|off, "
                     "corrupt 0..1, rate BYTES_PER_SECOND, cut or clear"));
  }
  *faults = next;
  return absl::OkStatus();
}

}  // namespace eplb::chaos
