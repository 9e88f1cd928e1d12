// @ts-check
// A form from a JSON schema. What a form cannot express is written as JSON.

import { html, nothing, render } from './lit-html.js';

/** @typedef {Record<string, any>} Schema */
/** @typedef {{ value: unknown, wrong: { id: string, text: string } | null }} Taken */
/** @typedef {{ view: unknown, take: () => Taken }} Field */

/** Where objects nest deeper, they are written as JSON. */
const DEEPEST = 4;
/** Fields that a form has at most; the rest of a hostile schema is JSON as well. */
const MOST = 200;

let forms = 0;

/**
 * A form in a node of its own, so that what was typed for one tool never stands in that of another.
 */
export class SchemaForm {
  /** @param {Schema | undefined} schema */
  constructor(schema) {
    this.node = document.createElement('div');
    this.node.className = 'schema-form';
    this.prefix = `form${(forms += 1)}`;
    this.root = isObject(schema) ? schema : { type: 'object' };
    this.fields = 0;
    this.asJson = false;
    this.field = this.object(resolve(this.root, this.root), '', 0);
    this.draw();
  }

  /** @param {string} [text] what the JSON begins with */
  draw(text) {
    render(html`
      ${this.asJson
        ? html`<label for="${this.prefix}-json">Arguments as JSON</label>
          <textarea id="${this.prefix}-json" rows="8" spellcheck="false" aria-describedby="${this.prefix}-json-error" .value=${text ?? '{}'}></textarea>
          <span class="bad" id="${this.prefix}-json-error"></span>`
        : this.field?.view}
      <p><button type="button" class="small" @click=${() => this.toggle()}>${this.asJson ? 'Edit as a form' : 'Edit as JSON'}</button></p>`, this.node);
  }

  toggle() {
    const { value } = this.asJson ? { value: {} } : this.read();
    this.asJson = !this.asJson;
    this.draw(JSON.stringify(value ?? {}, null, 2));
    /** @type {HTMLElement | null} */ (this.node.querySelector('input, select, textarea'))?.focus();
  }

  /**
   * Returns what was typed; `null` if something is wrong, which is then shown and focused.
   * @returns {any}
   */
  value() {
    for (const error of this.node.querySelectorAll('[id$="-error"]')) error.textContent = '';
    for (const field of this.node.querySelectorAll('[aria-invalid]')) field.removeAttribute('aria-invalid');
    const { value, wrong } = this.read();
    if (!wrong) return value ?? {};
    const field = this.element(wrong.id);
    const error = this.node.querySelector(`[id="${wrong.id}-error"]`);
    if (error) error.textContent = wrong.text;
    field?.setAttribute('aria-invalid', 'true');
    field?.focus();
    return null;
  }

  /** @returns {Taken} */
  read() {
    if (this.asJson) return this.takeJson(`${this.prefix}-json`, true);
    return this.field ? this.field.take() : { value: {}, wrong: null };
  }

  /** @param {string} id @returns {HTMLInputElement | null} */
  element(id) {
    return this.node.querySelector(`[id="${id}"]`);
  }

  nextId() {
    this.fields += 1;
    return `${this.prefix}-${this.fields}`;
  }

  /**
   * @param {Schema} schema
   * @param {string} path
   * @param {number} depth
   * @returns {Field}
   */
  object(schema, path, depth) {
    const required = new Set(Array.isArray(schema.required) ? schema.required : []);
    const entries = Object.entries(isObject(schema.properties) ? schema.properties : {});
    const known = entries.map(([name, property]) => ({
      name,
      field: this.any(resolve(property, this.root), name, required.has(name), depth + 1),
    }));
    return {
      view: known.length === 0 && depth === 0 ? html`<p class="soft">It takes no arguments.</p>` : known.map(({ field }) => field.view),
      take: () => {
        /** @type {Record<string, unknown>} */
        const value = {};
        for (const { name, field } of known) {
          const taken = field.take();
          if (taken.wrong) return { value, wrong: taken.wrong };
          // A plain assignment of `__proto__` would be lost.
          if (taken.value !== undefined) Object.defineProperty(value, name, { value: taken.value, enumerable: true });
        }
        return { value: known.length > 0 && Object.keys(value).length === 0 && depth > 0 ? undefined : value, wrong: null };
      },
    };
  }

  /**
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @param {number} depth
   * @returns {Field}
   */
  any(schema, name, required, depth) {
    const id = this.nextId();
    const options = optionsOf(schema);
    if (this.fields > MOST) return this.json(id, schema, name, required);
    if (options) return this.select(id, schema, name, required, options);
    switch (schema.type) {
      case 'boolean':
        return this.select(id, schema, name, required, [{ value: true, text: 'true' }, { value: false, text: 'false' }]);
      case 'integer':
      case 'number':
        return this.input(id, schema, name, required, 'number');
      case 'string':
        return this.input(id, schema, name, required, { email: 'email', date: 'date', uri: 'url' }[String(schema.format)] ?? 'text');
      case 'array':
        return this.array(id, schema, name, required);
      case 'object':
        if (isObject(schema.properties) && depth < DEEPEST) {
          const inner = this.object(schema, name, depth);
          return {
            view: html`<fieldset><legend class="from">${title(schema, name)}${mark(required)}</legend>${help(id, schema)}${inner.view}</fieldset>`,
            take: () => {
              const taken = inner.take();
              return required && taken.value === undefined && !taken.wrong ? { value: {}, wrong: null } : taken;
            },
          };
        }
        return this.json(id, schema, name, required);
      default:
        return this.json(id, schema, name, required);
    }
  }

  /**
   * @param {string} id
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @param {string} type
   * @returns {Field}
   */
  input(id, schema, name, required, type) {
    const long = type === 'text' && (schema.maxLength > 200 || schema.contentMediaType);
    const start = schema.default === undefined ? '' : String(schema.default);
    return {
      view: this.labelled(id, schema, name, required, long
        ? html`<textarea id=${id} rows="4" ?required=${required} aria-describedby="${id}-help ${id}-error" .value=${start}></textarea>`
        : html`<input id=${id} type=${type} value=${start} ?required=${required} autocomplete="off" aria-describedby="${id}-help ${id}-error"
            step=${type === 'number' ? (schema.type === 'integer' ? '1' : 'any') : nothing} min=${schema.minimum ?? nothing} max=${schema.maximum ?? nothing}>`),
      take: () => {
        const field = this.element(id);
        const text = field?.value ?? '';
        if (type === 'number') {
          if (field?.validity.badInput) return { value: undefined, wrong: { id, text: 'This is no number.' } };
          if (text === '') return required ? missing(id) : absent;
          const value = Number(text);
          if (schema.type === 'integer' && !Number.isInteger(value)) return { value, wrong: { id, text: 'This must be a whole number.' } };
          return { value, wrong: null };
        }
        if (text === '') return required && (schema.minLength ?? 0) > 0 ? missing(id) : required ? { value: '', wrong: null } : absent;
        return { value: text, wrong: null };
      },
    };
  }

  /**
   * @param {string} id
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @param {{ value: unknown, text: string }[]} options
   * @returns {Field}
   */
  select(id, schema, name, required, options) {
    const start = options.findIndex((option) => option.value === schema.default);
    return {
      view: this.labelled(id, schema, name, required, html`<select id=${id} ?required=${required} aria-describedby="${id}-help ${id}-error">
        ${required && start >= 0 ? nothing : html`<option value="">${required ? 'choose…' : 'not given'}</option>`}
        ${options.slice(0, 500).map((option, index) => html`<option value=${index} ?selected=${index === start}>${option.text}</option>`)}</select>`),
      take: () => {
        const text = this.element(id)?.value ?? '';
        if (text === '') return required ? missing(id) : absent;
        return { value: options[Number(text)]?.value, wrong: null };
      },
    };
  }

  /**
   * @param {string} id
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @returns {Field}
   */
  array(id, schema, name, required) {
    const items = resolve(schema.items, this.root);
    const options = optionsOf(items);
    if (options && options.length <= 50) {
      const chosen = Array.isArray(schema.default) ? schema.default : [];
      return {
        view: html`<fieldset id=${id} aria-describedby="${id}-help ${id}-error"><legend class="from">${title(schema, name)}${mark(required)}</legend>${help(id, schema)}
          ${options.map((option, index) => html`<label class="check"><input type="checkbox" id="${id}-${index}" ?checked=${chosen.includes(option.value)}> <span class="from">${option.text}</span></label>`)}</fieldset>`,
        take: () => {
          const value = options.filter((_, index) => this.element(`${id}-${index}`)?.checked).map((option) => option.value);
          return value.length === 0 && !required ? absent : { value, wrong: null };
        },
      };
    }
    if (items.type !== 'string' && items.type !== 'number' && items.type !== 'integer') return this.json(id, schema, name, required);
    const start = Array.isArray(schema.default) ? schema.default.join('\n') : '';
    return {
      view: this.labelled(id, schema, name, required, html`<textarea id=${id} rows="3" aria-describedby="${id}-help ${id}-error" .value=${start}></textarea>`, 'one per line'),
      take: () => {
        const lines = (this.element(id)?.value ?? '').split('\n').filter((line) => line !== '');
        if (lines.length === 0) return required ? { value: [], wrong: null } : absent;
        if (items.type === 'string') return { value: lines, wrong: null };
        const value = lines.map(Number);
        return value.some(Number.isNaN) ? { value, wrong: { id, text: 'A line is no number.' } } : { value, wrong: null };
      },
    };
  }

  /**
   * @param {string} id
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @returns {Field}
   */
  json(id, schema, name, required) {
    const start = schema.default === undefined ? '' : JSON.stringify(schema.default, null, 2);
    return {
      view: this.labelled(id, schema, name, required, html`<textarea id=${id} rows="3" spellcheck="false" aria-describedby="${id}-help ${id}-error" .value=${start}></textarea>`, 'JSON'),
      take: () => this.takeJson(id, required),
    };
  }

  /** @param {string} id @param {boolean} required @returns {Taken} */
  takeJson(id, required) {
    const text = this.element(id)?.value.trim() ?? '';
    if (text === '') return required ? missing(id) : absent;
    try {
      return { value: JSON.parse(text), wrong: null };
    } catch (error) {
      return { value: undefined, wrong: { id, text: `This is no JSON: ${error instanceof Error ? error.message : error}` } };
    }
  }

  /**
   * @param {string} id
   * @param {Schema} schema
   * @param {string} name
   * @param {boolean} required
   * @param {unknown} control
   * @param {string} [form]
   */
  labelled(id, schema, name, required, control, form) {
    return html`<div class="field"><label for=${id} class="from">${title(schema, name)}${mark(required)}${form ? html` <span class="soft">(${form})</span>` : nothing}</label>
      ${control}${help(id, schema)}<span class="bad" id="${id}-error"></span></div>`;
  }
}

/** @type {Taken} */
const absent = { value: undefined, wrong: null };

/** @param {string} id @returns {Taken} */
function missing(id) {
  return { value: undefined, wrong: { id, text: 'This is required.' } };
}

/** @param {unknown} value @returns {value is Schema} */
function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Returns a schema without references, and without the alternative `null`.
 * @param {unknown} schema
 * @param {Schema} root
 * @param {number} [depth]
 * @returns {Schema}
 */
function resolve(schema, root, depth = 0) {
  if (!isObject(schema) || depth > 8) return {};
  if (typeof schema.$ref === 'string' && schema.$ref.startsWith('#/')) {
    let target = /** @type {unknown} */ (root);
    for (const part of schema.$ref.slice(2).split('/')) {
      const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
      target = isObject(target) && Object.hasOwn(target, key) ? target[key] : undefined;
    }
    const { $ref: _, ...beside } = schema;
    return { ...resolve(target, root, depth + 1), ...beside };
  }
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (Array.isArray(alternatives)) {
    const left = alternatives.filter((one) => !isObject(one) || one.type !== 'null');
    if (left.length === 1) return { ...resolve(left[0], root, depth + 1), ...titles(schema) };
  }
  if (Array.isArray(schema.type)) {
    const left = schema.type.filter((one) => one !== 'null');
    return { ...schema, type: left.length === 1 ? left[0] : undefined };
  }
  return schema;
}

/** @param {Schema} schema @returns {Schema} */
function titles(schema) {
  const kept = Object.entries(schema).filter(([key]) => ['title', 'description', 'default'].includes(key));
  return Object.fromEntries(kept);
}

/**
 * Returns the values to choose from, if there are such.
 * @param {Schema} schema
 * @returns {{ value: unknown, text: string }[] | null}
 */
function optionsOf(schema) {
  if (Array.isArray(schema.enum)) {
    const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
    return schema.enum.map((value, index) => ({ value, text: String(names[index] ?? value) }));
  }
  const alternatives = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(alternatives) && alternatives.length > 0 && alternatives.every((one) => isObject(one) && 'const' in one)) {
    return alternatives.map((one) => ({ value: one.const, text: String(one.title ?? one.const) }));
  }
  return 'const' in schema ? [{ value: schema.const, text: String(schema.const) }] : null;
}

/** @param {Schema} schema @param {string} name */
function title(schema, name) {
  return typeof schema.title === 'string' && schema.title !== name ? html`${schema.title} <code class="soft">${name}</code>` : html`<code>${name}</code>`;
}

/** @param {boolean} required */
function mark(required) {
  return required ? html` <span class="soft">required</span>` : nothing;
}

/** @param {string} id @param {Schema} schema */
function help(id, schema) {
  const bounds = [
    schema.minimum === undefined ? '' : `from ${schema.minimum}`,
    schema.maximum === undefined ? '' : `up to ${schema.maximum}`,
  ].filter(Boolean).join(' ');
  const text = [typeof schema.description === 'string' ? schema.description : '', bounds].filter(Boolean).join(' · ');
  return html`<span class="soft from" id="${id}-help">${text}</span>`;
}
