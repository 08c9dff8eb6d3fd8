// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/generate/generate.hpp"
#include "page_pool.hpp"
#include "text_model.hpp"

namespace hyperslab::generate {

/// Generator::prompt_logits, on pages of a pool that has all of them.
void score_prompts(TextModel& model, PagePool& pool, const Prompts& prompts,
                   const Generator::PromptRow& row);

}  // namespace hyperslab::generate
