#include "tests/support/echo_loads.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace eplb::testing {
namespace {

// A permutation; the standard's shuffle differs between libraries.
std::vector<size_t> Shuffled(size_t count, std::mt19937_64& random) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

double Zipf(size_t index, double exponent) {
  return std::pow(static_cast<double>(index + 1), -exponent);
}

std::vector<int64_t> LoadOf(const EchoShape& shape, Skew skew, double exponent, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto homes = static_cast<size_t>(shape.homes);
  const auto num_gpus = static_cast<size_t>(shape.num_gpus);
  std::vector<double> popularity(num_gpus * homes, 1);
  const bool zipf = skew == Skew::kZipf;
  const std::vector<size_t> order = Shuffled(zipf ? popularity.size() : num_gpus, random);
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) sum += Zipf(i, exponent);
  for (size_t i = 0; i < order.size(); ++i) {
    const double share = Zipf(i, exponent) / sum;
    if (zipf) {
      popularity[order[i]] = share;
    } else {  // together the hot experts have as many tokens as all experts without them
      popularity[order[i] * homes + random() % homes] +=
          share * static_cast<double>(popularity.size());
    }
  }
  const double total = std::accumulate(popularity.begin(), popularity.end(), 0.0);
  std::vector<int64_t> load;
  for (const double share : popularity) {
    load.push_back(std::llround(share / total * static_cast<double>(shape.tokens)));
  }
  return load;
}

double ImbalanceOf(const EchoShape& shape, const std::vector<int64_t>& load) {
  int64_t largest = 0;
  for (auto gpu = load.begin(); gpu != load.end(); gpu += shape.homes) {
    largest = std::max(largest, std::accumulate(gpu, gpu + shape.homes, int64_t{0}));
  }
  const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
  return static_cast<double>(largest * shape.num_gpus) / static_cast<double>(total);
}

}  // namespace

std::vector<int64_t> LoadWithImbalance(const EchoShape& shape, Skew skew, double imbalance,
                                       uint64_t seed) {
  double low = 0;
  double high = 4;
  for (int step = 0; step < 22; ++step) {
    const double middle = (low + high) / 2;
    (ImbalanceOf(shape, LoadOf(shape, skew, middle, seed)) < imbalance ? low : high) = middle;
  }
  return LoadOf(shape, skew, high, seed);
}

}  // namespace eplb::testing
