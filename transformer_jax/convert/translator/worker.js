// The worker: it is given the model once, and then lines. It answers by number.

let translator = null;

self.onmessage = ({ data }) => {
  const { number, about, bytes, plain, line, options } = data;
  try {
    if (about) {
      translator = new Translator(about, bytes, plain);
      self.postMessage({ number, result: { fast: Boolean(translator.model.kernel.fast) } });
    } else {
      const begun = performance.now();
      const result = translator.translate(line, options);
      self.postMessage({ number, result: { ...result, milliseconds: performance.now() - begun } });
    }
  } catch (error) {
    self.postMessage({ number, failure: error.message });
  }
};
