// The mean of figures of which some have no sample: those are left out. threads: a value, not safe.
#pragma once

#include <cstdint>
#include <optional>

namespace eplb {

class FigureMean {
 public:
  void Add(const std::optional<double>& figure) {
    if (!figure.has_value()) return;
    sum_ += *figure;
    ++count_;
  }
  // Returns the mean; nullopt before the first figure.
  std::optional<double> Value() const {
    if (count_ == 0) return std::nullopt;
    return sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace eplb
