// Improvement of an incumbent by the steps that win most per copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/arrangement.h"
#include "placement/search/descent.h"

namespace eplb {

// Returns the softness of SmoothMaximum, as a load, if the largest load is `peak` and GPUs should
// come near `scale`. It grows with the distance, so that steps far from balance are ranked by the
// load that they remove. REQUIRES: scale > 0.
double SoftnessOf(double peak, double scale);

// Returns softness * ln(sum over GPUs of exp(load / softness)), a smooth stand-in for the largest
// GPU load, which it is never below. The load of the next window differs by some noise on every
// GPU, so that any GPU near the top may be the hottest then. The smooth maximum counts them all,
// those further below the top less and less. REQUIRES: at least one load, scale > 0.
double SmoothMaximum(std::span<const double> loads, double scale);

struct ImprovementLimits {
  int32_t copies_per_gpu;  // into any GPU
  int32_t copies;          // into all GPUs
};

// Moves an incumbent layout towards balance step by step. Each step costs copies: a GPU that gets
// an expert that it did not hold in the incumbent needs one. The steps lower the smooth maximum
// rather than the largest load, so that a step from any hot GPU to a cool one counts. Threads: one
// at a time.
class ImprovementSteps {
 public:
  // `arrangement` holds the incumbent and outlives this. `scale` > 0 is the load that GPUs should
  // come near, such as the bound.
  ImprovementSteps(Arrangement& arrangement, double scale, const ImprovementLimits& limits);

  // Takes the exchange or the replacement that lowers the smooth maximum most per copy. False if
  // none lowers it by `least_win` (in parts of the scale) per copy within the limits. cost: O(S *
  // slots per GPU * GPUs near the top).
  bool Step(double least_win);

  // Gives an expert with a large unit another replica, in place of one that is missed least, on the
  // GPU where that harms the smooth maximum least. If every expert drifts by the same part of its
  // load, the variance of GPU loads is the sum of squared units. False if no replacement lowers
  // that sum by `least_part` of it within the limits. The smooth maximum may rise; Step repairs
  // that.
  bool Spread(double least_part);

  // Copies that the present layout needs, in all GPUs.
  int32_t copies() const { return copies_; }

 private:
  struct Choice {
    double value = 0;  // won per copy
    int32_t slot = -1;
    int32_t other_slot = -1;  // second slot of an exchange
    int32_t expert = -1;      // new expert of a replacement
  };
  size_t IndexOf(int32_t gpu, int32_t expert) const {
    return AsIndex(gpu) * AsIndex(num_experts_) + AsIndex(expert);
  }
  // Copies for putting an expert on a GPU: 0 if the incumbent had it there.
  int32_t CostOf(int32_t gpu, int32_t expert) const;
  // Additional copies into a GPU if one expert arrives and another leaves.
  int32_t CopiesMore(int32_t gpu, int32_t arriving, int32_t leaving) const;
  bool Affordable(int32_t gpu, int32_t copies) const;
  // exp((load - peak) / softness), with the peak and the softness of the last Refresh.
  double WeightOf(double load) const;
  double weight(int32_t gpu) const { return weight_[AsIndex(gpu)]; }
  // Weight that a GPU loses with some of its tokens.
  double WinWithout(int32_t gpu, double tokens) const;
  // Weight that all GPUs lose by the last trial.
  double TrialWin() const;
  void ConsiderSwaps(Choice& best) const;
  void ConsiderAllSwaps(Choice& best) const;
  // The most that an exchange between two GPUs can take from their weights, and its least cost.
  double MostOfSwap(int32_t hot, int32_t cool) const;
  double LeastCopies(int32_t hot, int32_t cool) const;
  void ConsiderSwapsOf(int32_t hot, int32_t cool, Choice& best) const;
  // One more replica of an expert.
  struct Replica {
    int32_t expert;
    double unit;  // unit of all its replicas with one more
    double win;   // weight that the GPUs that hold it already lose
    // Factors are 0 if GPUs differ in speed.
    double less;  // factor that is left of the weights of these GPUs
    double more;  // factor by which it raises the weight of a GPU that gets it
  };
  std::vector<Replica> MoreReplicas() const;  // the largest win first
  // A slot whose expert has other replicas.
  struct Departure {
    int32_t slot;
    int32_t gpu;
    int32_t expert;
    // Weight that each other GPU with the expert gains.
    struct Harm {
      int32_t gpu;
      double weight;
    };
    std::vector<Harm> harms;
    double harm;  // their sum
  };
  Departure DepartureOf(int32_t slot) const;
  // Never less than the weight that the slot's GPU loses if a replica takes the expert's place.
  double MostHere(const Departure& departure, const Replica& replica) const;
  bool Holds(int32_t gpu, int32_t expert) const { return holds_[IndexOf(gpu, expert)] != 0; }
  void ConsiderReplacements(Choice& best);
  void ConsiderReplacementsOf(const Departure& departure, std::span<const Replica> replicas,
                              std::span<const size_t> places, Choice& best);
  void ConsiderReplacement(const Departure& departure, const Replica& replica, Choice& best);
  // The slot that gets `expert`, among those whose own expert loses no more than `most_missed` in
  // squared units; -1 if there is none.
  int32_t SlotFor(int32_t expert, double most_missed);
  void Refresh();

  Arrangement& arrangement_;
  double scale_;
  ImprovementLimits limits_;
  double inverse_speed_;  // one for all GPUs; 0: they differ
  int32_t num_experts_;
  std::vector<char> had_;           // [m * n], in the incumbent
  std::vector<int32_t> incumbent_;  // [S], experts
  // State of the last Refresh.
  std::vector<char> holds_;       // [m * n]
  std::vector<int32_t> arrived_;  // [m], copies of the present layout
  int32_t copies_ = 0;
  double peak_ = 0;
  double softness_ = 0;         // in load
  std::vector<double> weight_;  // [m]
  std::vector<double> root_;    // [m], square roots of the weights
  std::vector<double> less_;  // [S], factor that is left of the GPU's weight without the slot, and
  std::vector<double> more_;  // its inverse
  double sum_of_weights_ = 0;
  std::vector<int32_t> by_load_;  // [m], the hottest first
  ReplacementTrial trial_;
};

}  // namespace eplb
