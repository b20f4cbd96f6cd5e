#include "client/cli/duration_flag.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eplb::cli {

absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration > absl::ZeroDuration() && duration <= most) return duration;
  return absl::InvalidArgumentError(absl::StrCat(flag, " is \"", text,
                                                 "\", expected e.g. 5s or 500ms, at most ",
                                                 absl::ToInt64Hours(most), "h"));
}

}  // namespace eplb::cli
