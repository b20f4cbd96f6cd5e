// How --link-gbps was read, for people.
#ifndef EPLB_CLIENT_CLI_LINKS_H_
#define EPLB_CLIENT_CLI_LINKS_H_

#include <string>

#include "absl/status/status.h"

#include "client/cli/frame.h"
#include "placement/cost.h"

namespace eplb::cli {

// "INTRA,INTER", each as ParseBandwidth reads it. errors: InvalidArgument, naming the flag.
absl::Status ReadLinks(const std::string& text, Costs& costs);

// "450 GB/s inside a node and 50 GB/s between nodes".
std::string LinksText(const CostOptions& options);
// For stderr: a number that was probably meant in Gb/s, "note: --link-gbps: INTER is ..". Empty:
// none.
std::string LinksNote(const CostOptions& options);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINKS_H_
