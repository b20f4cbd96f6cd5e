#include "client/cli/gpu_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/text.h"

namespace eplb::cli {
namespace {

constexpr size_t kMaxBars = 16;  // GPUs with a bar each
constexpr int kMaxPictureBar = 60;
constexpr int kWideEnoughForAll = 100;
constexpr size_t kExtremes = 3;  // GPUs that are named as hottest and as coolest

using Loads = std::span<const double>;

std::string Times(double multiple) {
  return multiple < 1000 ? absl::StrFormat("%.2fx", multiple) : absl::StrFormat("%.2gx", multiple);
}

double Largest(const GpuPicture& picture) {
  return std::max(*std::ranges::max_element(picture.before),
                  *std::ranges::max_element(picture.after));
}

std::string Spaces(int n) { return std::string(static_cast<size_t>(std::max(n, 0)), ' '); }

// A bar whose part above the mean is marked, and a mark where the mean is when it ends below.
std::string BarAgainstMean(double value, double full, double mean, int width, Colour colour,
                           const Terminal& terminal) {
  const int mark = std::min(width - 1, static_cast<int>(std::floor(mean / full * width)));
  const std::string bar = Bar(value, full, width, terminal);
  const int length = DisplayWidth(bar);
  if (length <= mark) {
    return absl::StrCat(Paint(terminal, colour, bar), Spaces(mark - length),
                        Paint(terminal, Colour::kDim, terminal.unicode ? "┊" : "|"),
                        Spaces(width - mark - 1));
  }
  const std::string within = Bar(1, 1, mark + 1, terminal);
  const bool above = bar.size() > within.size();
  return absl::StrCat(Paint(terminal, colour, above ? bar.substr(0, within.size()) : bar),
                      above ? Paint(terminal, Colour::kRed, bar.substr(within.size())) : "",
                      Spaces(width - length));
}

std::string DrawBars(const GpuPicture& picture, const Terminal& terminal) {
  constexpr int kNumber = 9;  // columns of " 123.45x"
  const int width = std::min(kMaxPictureBar, (terminal.width - 5 - 3) / 2 - kNumber);
  const double full = Largest(picture);
  std::string text = Paint(
      terminal, Colour::kDim,
      absl::StrFormat("GPU  %-*s   %s", width + kNumber, picture.before_name, picture.after_name));
  const auto side = [&](double value, Colour colour) {
    return absl::StrCat(BarAgainstMean(value, full, picture.mean, width, colour, terminal),
                        absl::StrFormat("%*s", kNumber, Times(value / picture.mean)));
  };
  for (size_t gpu = 0; gpu < picture.before.size(); ++gpu) {
    absl::StrAppend(&text, absl::StrFormat("\n%3d  ", gpu),
                    side(picture.before[gpu], Colour::kYellow), "   ",
                    picture.unusable[gpu] ? Paint(terminal, Colour::kDim, "unusable")
                                          : side(picture.after[gpu], Colour::kGreen));
  }
  return text + "\n";
}

// "hottest GPU 17 2.31x, 4 1.98x; coolest GPU 30 0.21x" of the GPUs that serve.
std::string Extremes(const std::string& name, Loads loads, const std::vector<bool>& skipped,
                     const GpuPicture& picture, const Terminal& terminal) {
  std::vector<size_t> order;
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
    if (!skipped[gpu]) order.push_back(gpu);
  }
  std::ranges::stable_sort(order, [loads](size_t a, size_t b) { return loads[a] > loads[b]; });
  const auto list = [&](const char* what, size_t most) {
    std::string text;
    for (size_t i = 0; i < std::min(most, order.size()); ++i) {
      absl::StrAppend(&text, i == 0 ? what : ",", " ", order[i], " ",
                      Times(loads[order[i]] / picture.mean));
    }
    return text;
  };
  const std::string hottest = list("hottest GPU", kExtremes);
  std::ranges::reverse(order);
  const std::string coolest =
      list("; coolest GPU", terminal.width >= kWideEnoughForAll ? kExtremes : 1);
  const std::string label = absl::StrFormat("%-10s", name);
  return absl::StrCat(
      Paint(terminal, Colour::kBold, label),
      Wrapped(absl::StrCat(hottest, coolest), terminal.width - DisplayWidth(label), 2), "\n");
}

// Edges of the histogram's rows as multiples of the mean, finer around it.
constexpr double kEdges[] = {0,    0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1,
                             1.02, 1.05, 1.1, 1.25, 1.5, 2,    3,    5};
constexpr size_t kNumRows = std::size(kEdges);

std::vector<int64_t> CountByRow(Loads loads, const std::vector<bool>& skipped, double mean) {
  std::vector<int64_t> counts(kNumRows);
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
    if (skipped[gpu]) continue;
    const auto* above = std::upper_bound(std::begin(kEdges), std::end(kEdges), loads[gpu] / mean);
    ++counts[static_cast<size_t>(std::max<std::ptrdiff_t>(above - std::begin(kEdges), 1) - 1)];
  }
  return counts;
}

std::string DrawHistogram(const GpuPicture& picture, const Terminal& terminal) {
  constexpr int kLabel = 15;
  constexpr int kNumber = 6;
  const std::vector<int64_t> before =
      CountByRow(picture.before, std::vector<bool>(picture.before.size()), picture.mean);
  const std::vector<int64_t> after = CountByRow(picture.after, picture.unusable, picture.mean);
  const auto full = static_cast<double>(
      std::max(*std::ranges::max_element(before), *std::ranges::max_element(after)));
  const int width = std::min(kMaxPictureBar, (terminal.width - kLabel - 3) / 2 - kNumber);
  const auto side = [&](int64_t count, Colour colour) {
    const std::string bar = Bar(static_cast<double>(count), full, width, terminal);
    return absl::StrCat(Paint(terminal, colour, bar), Spaces(width - DisplayWidth(bar)),
                        absl::StrFormat("%*d", kNumber, count));
  };
  std::string text = Paint(terminal, Colour::kDim,
                           absl::StrFormat("%-*s%-*s   %s", kLabel, "of the mean", width + kNumber,
                                           picture.before_name, picture.after_name));
  const auto used = [&](size_t row) { return before[row] + after[row] > 0; };
  size_t first = 0;
  size_t last = kNumRows - 1;
  while (!used(first)) ++first;
  while (!used(last)) --last;
  for (size_t row = last + 1; row-- > first;) {
    const std::string label = row + 1 < kNumRows
                                  ? absl::StrFormat("%.2f .. %.2f", kEdges[row], kEdges[row + 1])
                                  : absl::StrFormat("%.2f ..", kEdges[row]);
    absl::StrAppend(&text, "\n", absl::StrFormat("%-*s", kLabel, label),
                    side(before[row], Colour::kYellow), "   ", side(after[row], Colour::kGreen));
  }
  return text + "\n";
}

}  // namespace

std::string DrawGpuLoads(const GpuPicture& picture, const Terminal& terminal) {
  if (picture.before.size() <= kMaxBars) return DrawBars(picture, terminal);
  const std::vector<bool> none(picture.before.size());
  return absl::StrCat(
      DrawHistogram(picture, terminal),
      Extremes(picture.before_name, picture.before, none, picture, terminal),
      Extremes(picture.after_name, picture.after, picture.unusable, picture, terminal));
}

}  // namespace eplb::cli
