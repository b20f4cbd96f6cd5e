// Answers of the ranks to proposals: to the one in flight, and to proposals of earlier daemons.
#pragma once

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

void Handle(DecisionContext& context, Sender sender, const wire::Prepared& prepared);
void Handle(DecisionContext& context, Sender sender, const wire::Nack& nack);
void Handle(DecisionContext& context, Sender sender, const wire::Applied& applied);
void Handle(DecisionContext& context, Sender sender, const wire::Failed& failed);

// A rank runs the proposal in flight. When and how it switched is not known.
void HandleSwitched(DecisionContext& context, Sender sender, const wire::Applied& applied);

// A rank of the current run is connected again while a proposal is in flight: what it runs
// counts as Applied, what it is PREPARED for as Prepared, and what it missed is sent again.
void HandleRejoin(DecisionContext& context, Sender sender, const wire::Hello& hello);
// A rank said Goodbye while a proposal is in flight: it holds nothing any more.
void HandleRankFinished(DecisionContext& context, Sender sender);

}  // namespace eplb::core
