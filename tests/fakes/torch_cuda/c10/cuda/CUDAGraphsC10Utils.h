/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the header of a torch built for CUDA: nothing is captured. */
#pragma once

namespace c10::cuda
{

enum class CaptureStatus : int { None, Active };

inline CaptureStatus
currentStreamCaptureStatusMayInitCtx()
{
    return CaptureStatus::None;
}

} // namespace c10::cuda
