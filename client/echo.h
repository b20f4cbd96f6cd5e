// Client::PlanEcho, BroadcastEcho and ReduceEcho: replicas of a batch's hot experts in spare slots,
// for this batch alone (docs/echo.md). Homes, the placement and optimizer state stay where they
// are.
//
//   counts = all-reduce of the router's counts of the layer over the EP group
//   auto echo = client->PlanEcho(layer, counts, {.spare_slots = 2});
//   if (echo pays) client->BroadcastEcho(*echo, weights);    // before the layer's experts run
//   ... dispatch tokens by echo->plan.home_tokens and spare_tokens, forward, backward ...
//   client->ReduceEcho(*echo, gradients);                    // then ReduceGradients, as without
#ifndef EPLB_CLIENT_ECHO_H_
#define EPLB_CLIENT_ECHO_H_

#include <cstdint>

#include "client/client.h"
#include "placement/echo/echo_plan.h"

namespace eplb {

// PlanEcho: the echo of one layer of the batch at hand, beside the placement in force; a plan
// without communication. counts: [E], summed over the EP group: all ranks that call with equal
// counts and options have equal plans. Nothing is moved: PriceEcho gives the price of `plan`. With
// EPLB_DISABLE=1 the plan has no replica. errors: as EchoPlanner::Make and Plan.
//
// BroadcastEcho: copies the rows of homes into the spare slots that the plan fills. ReduceEcho:
// adds the rows of these spare slots to their homes', in the order of spare slots: equal input
// gives equal bits. The rows of a home keep their place: local spare slot i is row
// num_local_slots + i of the same tensor, so that a tensor has spare_slots rows more than are
// registered. Both are collective among the ranks of an EP group, on the training thread between
// two boundaries: each gives rows of the plan's layer, of the same names, sizes and types in the
// same order, and an equal plan. stream and waits: as ReduceGradients.
// errors: as ReduceGradients; InvalidArgument for rows of another layer or a plan of another shape;
// FailedPrecondition for a plan that was made under another version of the placement. Ranks that
// exchange rows by different plans get Aborted, the others at the latest in the next vote.
struct Echo {
  int64_t version = 0;  // of the placement that the plan is for; a switch makes it void
  EchoPlan plan;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_ECHO_H_
