"""What the prediction report says around its tables."""

INTRODUCTION = """
Made by `python tests/studies/prediction.py --report reports/prediction.md` (torch {torch}, Python {python}, CPU;
CUDA's casting rules on CPU tensors, heavy operations summed in float32 as Tensor Cores do).

ampcheck runs a step in FP32 once and says from its exponent histograms what each loss scale would do to the
gradients that the fp16 step holds in half precision. Here the same step is then really run in fp16, forward
and backward, at each scale, and the zeros are counted.
"""
HOW = """
* **Predicted**: elements that are not zero in the FP32 run and flush to zero in fp16 when multiplied by the
  scale, over all elements that are not zero; it is what `ampcheck` shows (`tables.scale_curve`). At the tie
  (2^-25) a histogram knows an interval: its lower end is given, since beyond it only exact powers of two
  underflow, and the band in the picture is the interval.
* **Measured**: zeros of the same tensors in the fp16 run less their zeros in the FP32 run, over the same
  elements. Negative: the fp16 run has fewer zeros, since rounding moves exact zeros (a ReLU that opens, a
  sum that cancelled).
* **inf**: an inf or NaN stood in a gradient. Then zeros mean nothing and the scale is left out of gaps.
* *Weight gradients* are results 1 and 2 of convolution and normalisation backwards, of embeddings, biases,
  and the product of a linear layer's backward that also stands in its parameter; everything else is an
  *activation gradient*. The products of layers that run several times or share weights count in *all* only.
"""
WORDS = """
All numbers are percent. Gaps are |measured - predicted| over the scales 2^0 to 2^24 that do not overflow.
*Lines of two precisions*: elements on lines of code that run the same operation in fp16 and in FP32, which
the prediction cannot tell apart. *Covered*: share of the fp16 gradients that have a counterpart in the FP32
run.
"""
AGREEMENT = """
On nine of ten models the one FP32 pass is right to 0.4 percentage points at every scale that does not
overflow, on eight of them to 0.06, and it names the scale at which overflow begins (to the factor of 2^4
between scales). GPT-2 is the exception, for a reason that shows in the table and is explained below;
without its lines of two precisions the gap is 0.03 points. The measured share lies at the lower end of the
interval nearly everywhere: of the numbers from 2^-25 up to 2^-24 only 2^-25 itself underflows.
"""
PUBLISHED = """
Micikevicius et al., *Mixed Precision Training* (ICLR 2018), show the activation gradients of Multibox SSD
over its training. NVIDIA's guide to mixed precision gives the figures: 31 % of all values become zeros in
fp16 and 5.3 % stay, so 85 % of what is not zero is lost; multiplied by 8 the training reaches FP32's
accuracy, multiplied by 2^15 all but 0.1 % are kept. Most of fp16's range, on the side of large numbers,
stays unused. (The guide's own figures leave a few percent open: it also says that 66.8 % are zero in FP32.)

Ours is torchvision's SSD300 with a VGG16 backbone in two states: random weights, and after {steps} steps of
SGD on generated pictures of coloured rectangles. **The shape is the published one**: the curve falls from
nearly everything to nearly nothing within 15 powers of two, the first three recover more than half of what
was lost, and more than half of fp16's range stays empty. **Its place is not**: our gradients are 2^10 to
2^13 times larger, so without a scale only 0.07 and 0.3 % are lost, and none to speak of from 2^4 on. The
rows "times smaller" move our curve to where 85 % are lost; at 2^-8 that was also measured, see the picture.
Why ours lies elsewhere:

* random weights and a few steps instead of a training that converges: the loss is far above a trained
  one's, and the gradients with it; in our {steps} steps the share lost without a scale grew nearly five
  times already;
* batches of 2 pictures instead of 32: the loss is a mean over matched boxes, so gradients shrink with the
  batch;
* the published histogram adds up a whole training, ours is of one step;
* He-initialised weights without normalisation keep gradients as large as they come in, all the way back.

So a single audited step of an untrained detector would not have warned of what happened in that training:
audit with trained weights (`--weights`), or late steps.
"""
GAPS = """
* **Propagation.** The prediction looks at each tensor by itself. In a real fp16 backward a gradient that
  underflowed earlier is missing in everything computed from it. It shows where much is lost: weight gradients
  of the detector at 2^-16, where 34 % are predicted and 90 % measured. Its weight gradients at 2^0 (3.4 %
  predicted, 4.6 % measured) fit that too; that gap was not taken apart further.
* **Gradients that are zero in exact arithmetic.** The key bias of attention does not change a softmax; a
  bias before a normalisation does not change its result. What FP32 holds there is rounding noise around
  1e-9, predicted to underflow; the fp16 run holds its own, larger noise, which does not. A few hundred elements
  in BERT and GPT-2, their weight gradients' whole gap.
* **Lines of two precisions.** GPT-2's GELU is one line with several products, of which CUDA's rules run
  some in FP32 (after `pow`). The site is the line, so the prediction takes all of them for fp16. Without
  such lines the gap is the one in the column beside.
* **Covered.** CPU dropout is another operation in FP32 than CUDA's, so gradients of dropout have no
  counterpart. A float32 LSTM is one oneDNN operation on the CPU: here it runs without oneDNN, step by step
  as in fp16.
* **Rounding.** Elements within one rounding error of the cut may fall on either side; fp16 forward values
  differ from FP32's by about 2^-11 and with them the gradients.
* **Overflow.** Once an inf stands in a gradient, NaNs spread to everything before it. The prediction says
  from which scale on it happens; the column compares it with the runs.
* **Emulation.** Half-precision products are rounded to fp16 after summing in float32, as cuBLAS and cuDNN
  do by default; the order of summation differs on a GPU.
"""
