/** A list that can be waited on: `until` resolves with the first item that fits, past or future. */
export class Sightings {
  items = [];
  #waiting = [];

  add(item) {
    this.items.push(item);
    this.#waiting = this.#waiting.filter(({ fits, resolve }) => !(fits(item) && (resolve(item), true)));
  }

  until(fits) {
    const found = this.items.find(fits);
    return found !== undefined ? Promise.resolve(found) : new Promise((resolve) => this.#waiting.push({ fits, resolve }));
  }
}
