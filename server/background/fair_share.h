// Whose turn it is at a thing that jobs use one after the other.
#ifndef EPLB_SERVER_BACKGROUND_FAIR_SHARE_H_
#define EPLB_SERVER_BACKGROUND_FAIR_SHARE_H_

#include <map>
#include <string>

#include "absl/time/time.h"

namespace eplb {

// What jobs used lately: a second counts half after kHalfLife. memory: the jobs that used anything
// in the last hours. threads: one at a time.
class FairShare {
 public:
  static constexpr absl::Duration kHalfLife = absl::Minutes(5);

  void Spend(const std::string& job, absl::Duration used, absl::Time now);
  // Seconds.
  double Used(const std::string& job, absl::Time now) const;

 private:
  struct Share {
    double seconds = 0;
    absl::Time at;
  };
  static double SecondsOf(const Share& share, absl::Time now);
  std::map<std::string, Share> shares_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_BACKGROUND_FAIR_SHARE_H_
