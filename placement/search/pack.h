// Puts replicas on GPUs, given how many each expert has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "placement/search/arrangement.h"
#include "placement/search/winner_tree.h"

namespace eplb {

// GPU loads that a packing goes by instead of the arrangement's own.
class PackingLoads {
 public:
  virtual double UnitOf(int32_t expert) const = 0;  // replicas are placed by falling unit
  // The load of a GPU with one more replica.
  virtual double LoadAfter(int32_t gpu, int32_t expert) const = 0;
  virtual void Placed(int32_t gpu, int32_t expert) = 0;
  virtual void Moved() = 0;  // replicas that were placed already changed places

 protected:
  ~PackingLoads() = default;
};

// Longest processing time first: replicas by falling unit, each to the GPU whose load it raises
// least among those with room that do not hold its expert. In a dead end a replica that is placed
// already makes room. If that fails, replicas go to the GPUs with most free slots, which always
// ends. Keeps its scratch. Threads: one at a time.
class Packer {
 public:
  // Fills an arrangement without affinities. counts: [n], within the limits of the domain, summing
  // to its slots. cost: O(S * (m + n / S * log n)).
  void Pack(std::span<const int32_t> counts, Arrangement& arrangement);

  // Fills an arrangement by other loads. An expert's home is kept if replicas may be nowhere else.
  // False in a dead end; the arrangement is unusable then. cost: O(S * m).
  bool PackBy(std::span<const int32_t> counts, PackingLoads& loads, Arrangement& arrangement);

  // Fills an arrangement with affinities. The first replica of each expert goes to a GPU of its
  // home. The others go anywhere, but leave room at every home for the experts that follow. False
  // in a dead end; the arrangement is unusable then.
  bool PackOnAffineNode(std::span<const int32_t> counts, Arrangement& arrangement);

 private:
  // Experts by falling key, first index on ties.
  template <class Key>
  void OrderBy(size_t num_experts, const Key& key);
  void Begin(std::span<const int32_t> counts, Arrangement& arrangement);
  // PackByLoad for GPUs that are equally fast and hold an expert at most once, which is nearly
  // always. The lightest GPU wins a winner_tree. Loads are compared as float32.
  bool PackByWinnerTree(std::span<const int32_t> counts, Arrangement& arrangement);
  template <class Loads>
  bool PackByLoad(std::span<const int32_t> counts, Loads& loads, Arrangement& arrangement);
  void PackByRoom(std::span<const int32_t> counts, Arrangement& arrangement);
  // The allowed GPU with room whose load an expert raises least, or -1.
  template <class Loads, class Allowed>
  int32_t LightestFor(int32_t expert, const Loads& loads, const Arrangement& arrangement,
                      const Allowed& allowed) const;
  int32_t RoomiestFor(int32_t expert, const Arrangement& arrangement) const;
  // Moves a replica that is placed already to a free slot, and puts the expert in its place.
  bool MakeRoom(int32_t expert, Arrangement& arrangement);
  void PutOn(int32_t gpu, int32_t expert, Arrangement& arrangement);

  std::vector<int32_t> order_;                      // [n]
  std::vector<std::pair<double, int32_t>> by_key_;  // [n]
  std::vector<int32_t> filled_;                     // [m], slots in use
  std::vector<int32_t> room_;                       // free slots per affinity
  std::optional<WinnerTree> lightest_;
  std::vector<int32_t> taken_;  // GPUs of the expert that is being placed
};

}  // namespace eplb
